"""Muon for matrices and AdamW for the rest, in one optimizer. Standalone: copy this file.

    groups = [{"kind": "muon", "params": matrices, "lr": 0.02, "weight_decay": 0.01},
              {"kind": "adamw", "params": others, "lr": 3e-3}]
    optimizer = Muon(groups)

Muon replaces a matrix's gradient by the nearest orthogonal matrix (Jordan et al. 2024,
kellerjordan.github.io/posts/muon). Two orders of momentum and orthogonalisation exist, and they do
not share a learning rate:

    momentum_first       m <- lerp(m, g, 1 - mu);  u = NS(lerp(g, m, mu))   Jordan, torch.optim.Muon
    orthogonalize_first  m <- mu m + NS(g);        u = NS(g) + mu m         arXiv:2607.18363

The first has singular values near 1; the second grows with the agreement of successive steps, up to
1 / (1 - mu) times larger. Neither is scaled by shape unless shape_factor is set: then by Jordan's
sqrt(max(1, rows / cols)). Same-shape matrices are orthogonalised as one batch. Each rank of a
distributed run makes the same whole update from the same reduced gradients.
Muon's direction does not depend on the gradient's scale, so clipping changes only the AdamW part
and, in momentum_first, the weight of this step in the momentum.
"""

from collections import defaultdict

import torch
from torch.optim.adamw import adamw

ORDERS = ("momentum_first", "orthogonalize_first")
MUON = dict(momentum=0.95, nesterov=True, ns_steps=5, order=ORDERS[0], shape_factor=False)
ADAMW = dict(betas=(0.9, 0.95), eps=1e-8)


def newton_schulz(g, steps=5, dtype=torch.bfloat16):
    """The nearest orthogonal matrix of each g, roughly: singular values go to about 0.7 .. 1.2.

    g: (..., rows, cols). Returns its shape in dtype; a zero matrix stays zero. The quintic's
    coefficients give the steepest slope at 0 rather than convergence to 1, so small singular values
    rise fast and large ones wander; exactness is not needed. Source: Jordan et al. 2024.
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = g.size(-2) > g.size(-1)
    x = (g.mT if tall else g).to(dtype)  # the smaller Gram matrix
    # By the largest entry first: the squares of tiny or huge gradients would leave the format.
    x = x / x.abs().amax(dim=(-2, -1), keepdim=True).clamp(min=torch.finfo(dtype).tiny)
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1)
    flat = x.reshape(-1, *x.shape[-2:])
    for _ in range(steps):
        gram = flat @ flat.mT
        gram = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        flat = torch.baddbmm(flat, gram, flat, beta=a)
    x = flat.view(x.shape)
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """Groups of kind "muon" (2-D parameters) and "adamw", each with its own settings.

    Keys: lr, weight_decay (decoupled: p *= 1 - lr * weight_decay), and those of MUON or ADAMW.
    ns_dtype is the precision of the Newton-Schulz iteration. A parameter without a gradient is left
    as it is, decay included. Raises ValueError, by name or shape, for a parameter that Muon cannot
    take, an unknown key or order, and a parameter in two groups.
    """

    def __init__(self, groups, ns_dtype=torch.bfloat16):
        self.ns_dtype = ns_dtype
        groups = [g for g in groups if len(g["params"])]
        for group in groups:
            if group.get("kind") not in ("muon", "adamw"):
                raise ValueError(f"group kind is {group.get('kind')!r}; choose muon or adamw")
            own = MUON if group["kind"] == "muon" else ADAMW
            for key, value in dict(own, weight_decay=0.0).items():
                group.setdefault(key, value)
            known = {"kind", "params", "lr", "weight_decay", "initial_lr", *own}
            if unknown := set(group) - known:
                raise ValueError(f"unknown keys in a {group['kind']} group: {sorted(unknown)}")
            if "lr" not in group:
                raise ValueError(f"a {group['kind']} group has no lr")
            if group["kind"] == "muon" and group["order"] not in ORDERS:
                raise ValueError(f"order is {group['order']!r}; choose {' or '.join(ORDERS)}")
        if not groups:
            raise ValueError("the optimizer got no parameters")
        super().__init__(groups, {})
        ids = [id(p) for group in self.param_groups for p in group["params"]]
        if len(set(ids)) < len(ids):
            raise ValueError("a parameter stands twice in the optimizer's groups")
        for group in self.param_groups:
            names = group.get("param_names") or [f"shape {tuple(p.shape)}" for p in group["params"]]
            for name, p in zip(names, group["params"]):
                if group["kind"] == "muon" and p.ndim != 2:
                    raise ValueError(f"Muon takes matrices; {name} has {p.ndim} dimensions")

    @torch.no_grad()
    def step(self, closure=None):
        """One update of every parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if params:
                (self._muon if group["kind"] == "muon" else self._adamw)(group, params)
        return loss

    def _muon(self, group, params):
        for p in params:
            if "momentum_buffer" not in self.state[p]:
                self.state[p]["momentum_buffer"] = torch.zeros_like(p)
        batches = defaultdict(list)
        for p in params:
            batches[p.shape, p.device, p.dtype].append(p)
        for (shape, _, _), batch in batches.items():
            update = self._direction(group, batch)
            scale = max(1, shape[0] / shape[1]) ** 0.5 if group["shape_factor"] else 1.0
            torch._foreach_mul_(batch, 1 - group["lr"] * group["weight_decay"])
            torch._foreach_add_(batch, update, alpha=-group["lr"] * scale)

    def _direction(self, group, batch):
        """The updates of same-shape matrices, before rate and scale."""
        mu, nesterov = group["momentum"], group["nesterov"]
        grads = [p.grad for p in batch]
        momenta = [self.state[p]["momentum_buffer"] for p in batch]

        # measured: on a CPU a batch that leaves the cache takes 1.5 times as long as its matrices.
        size = max(1, 2**19 // batch[0].numel()) if batch[0].device.type == "cpu" else len(batch)

        def orthogonalize(matrices):
            parts = [torch.stack(matrices[i : i + size]) for i in range(0, len(matrices), size)]
            parts = [newton_schulz(part, group["ns_steps"], self.ns_dtype) for part in parts]
            return [u for part in parts for u in part.to(batch[0].dtype).unbind()]

        if group["order"] == "momentum_first":
            torch._foreach_lerp_(momenta, grads, 1 - mu)
            return orthogonalize(torch._foreach_lerp(grads, momenta, mu) if nesterov else momenta)
        ortho = orthogonalize(grads)
        torch._foreach_mul_(momenta, mu)
        torch._foreach_add_(momenta, ortho)
        return torch._foreach_add(ortho, momenta, alpha=mu) if nesterov else momenta

    def _adamw(self, group, params):
        for p in params:
            state = self.state[p]
            if not state:
                state["step"] = torch.zeros((), dtype=torch.float32, device=p.device)
                state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(p), torch.zeros_like(p)
        slots = ([self.state[p][k] for p in params] for k in ("exp_avg", "exp_avg_sq", "step"))
        exp_avgs, exp_avg_sqs, steps = slots
        beta1, beta2 = group["betas"]
        adamw(
            params, [p.grad for p in params], exp_avgs, exp_avg_sqs, [], steps,
            fused=params[0].device.type in ("cpu", "cuda"), amsgrad=False, maximize=False,
            beta1=beta1, beta2=beta2, lr=group["lr"], eps=group["eps"],
            weight_decay=group["weight_decay"],
        )  # fmt: skip
