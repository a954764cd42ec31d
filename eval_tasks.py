"""Zero-shot tasks of lm-evaluation-harness on a checkpoint: pip install -e '.[eval]'.

    python eval_tasks.py out/san_param/ckpt.pt                                  # the study's seven
    python eval_tasks.py out/san_param/ckpt.pt --tasks=lambada_openai,sciq --limit=100
    python eval_tasks.py out/micro_san/ckpt.pt --tasks=mine --include_path=DIR  # DIR/mine.yaml

Reads the checkpoint, the tokenizer of its corpus, and the tasks' data, which the harness downloads
(never with HF_DATASETS_OFFLINE=1). Writes tasks.json beside the checkpoint, prints it beside the
study's figures. A text is scored after <|bos|>, as in training; of a context that is too long the
end is kept; a continuation longer than block_size is scored in pieces, each token once.
"""

import json
import sys
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from tqdm import tqdm

import sample
from configurator import ConfigError, UserError, fail
from dataset import DataError
from prepare import write_whole

# Accuracy at 105B tokens, SAN and FFN iso-parameter; of the rest the study says "most near chance".
STUDY = {"lambada_openai": (0.111, 0.134), "sciq": (0.742, 0.661), "arc_easy": (), "piqa": (),
         "hellaswag": (), "winogrande": (), "mmlu": ()}  # fmt: skip
BATCH = 8192  # tokens; float32 logits over 16384 ids take half a gigabyte


@dataclass(frozen=True)
class Options:
    """Options of eval_tasks.py: python eval_tasks.py CHECKPOINT [--key=value ...]"""

    tasks: str = ",".join(STUDY)  # names of the harness, or of files in include_path
    include_path: str = ""  # folder with task files (YAML) of your own
    limit: int = 0  # documents of each task; 0: all
    num_fewshot: int = 0  # solved examples before each question
    data: str = ""  # corpus or folder whose tokenizer to use; empty: the checkpoint's


def windows(context, continuation, room):
    """Yield (ids, n): rows of at most room + 1 ids whose last n are to be predicted.

    context: ids, one at least. Each id of the continuation is predicted once, from as many ids
    before it as the row holds.
    """
    ids = [*context, *continuation]
    for start in range(len(context), len(ids), room):
        stop = min(start + room, len(ids))
        yield ids[max(0, stop - room - 1) : stop], stop - start


def score_rows(model, rows):
    """(log-probability in nats, whether each is the likeliest) of the last n ids of some rows."""
    ids = torch.zeros(len(rows), max(len(row) for row, _ in rows), dtype=torch.int64)
    for line, (row, _) in zip(ids, rows):
        line[: len(row)] = torch.tensor(row)
    ids, counts = ids.to(model.wte.weight.device), [n for _, n in rows]
    # What fills a row up comes after it, where no position that counts can see it.
    hidden = model.hidden(ids[:, :-1])
    x = torch.cat([h[len(row) - 1 - n : len(row) - 1] for h, (row, n) in zip(hidden, rows)])
    y = torch.cat([line[len(row) - n : len(row)] for line, (row, n) in zip(ids, rows)])
    logits = F.linear(x, model.wte.weight.to(x.dtype)).float()  # (scored, V)
    nll = F.cross_entropy(logits, y, reduction="none").double().split(counts)
    right = (logits.argmax(-1) == y).split(counts)
    return [(-losses.sum().item(), hits.all().item()) for losses, hits in zip(nll, right)]


@torch.inference_mode()
def score(model, pairs, quiet=True):
    """(log-probability in nats, whether greedy decoding gives it) of each continuation.

    pairs: (context ids, continuation ids), as in windows().
    """
    jobs = [(len(ids), i, (ids, n)) for i, pair in enumerate(pairs)
            for ids, n in windows(*pair, model.cfg.block_size)]
    jobs.sort(key=lambda job: -job[0])  # rows of about one length need little filling
    results, done = [(0.0, True)] * len(pairs), 0
    with tqdm(total=len(jobs), unit="row", disable=True if quiet else None) as bar:
        while done < len(jobs):
            batch = jobs[done : done + max(1, BATCH // jobs[done][0])]
            for (_, i, _), (nats, greedy) in zip(batch, score_rows(model, [j[2] for j in batch])):
                results[i] = results[i][0] + nats, results[i][1] and greedy
            done += len(batch)
            bar.update(len(batch))
    return results


def harness_model(model, tokenizer, say):
    """The checkpoint as lm-evaluation-harness wants a model."""
    from lm_eval.api.model import TemplateLM
    room, bos = model.cfg.block_size, tokenizer.special["<|bos|>"]

    class CheckpointLM(TemplateLM):
        eot_token_id, prefix_token_id = tokenizer.special["<|eos|>"], bos

        def tok_encode(self, string, add_special_tokens=None, **_):
            return tokenizer.encode(string).tolist()

        def _loglikelihood_tokens(self, requests, disable_tqdm=False, **_):
            pairs = [(c if c[:1] == [bos] else [bos, *c], t) for _, c, t in requests]
            if n := sum(len(c) + len(t) > room + 1 for c, t in pairs):
                say(f"{n} of {len(pairs)} texts are longer than block_size {room}: cut on the left")
            return score(model, pairs, disable_tqdm)

        def loglikelihood_rolling(self, requests, disable_tqdm=False):
            pairs = [([bos], self.tok_encode(r.args[0])) for r in requests]
            return [nats for nats, _ in score(model, pairs, disable_tqdm)]

        def generate_until(self, requests, disable_tqdm=False):
            return [self.write(*r.args) for r in tqdm(requests, disable=disable_tqdm or None)]

        def write(self, context, options):
            """Text up to the first of options["until"]."""
            until, most = options.get("until") or [], options.get("max_gen_toks", 256)
            until = [until] if isinstance(until, str) else until
            prompt, ids, text = [bos, *self.tok_encode(context)], [], ""
            if len(prompt) > (left := room - min(most, room // 2)):
                say(f"a prompt of {len(prompt)} tokens is cut on the left to {left}")
            steps = sample.generate(
                model, prompt[-left:], tokenizer.vocab_size, [self.eot_token_id],
                max_new_tokens=most, temperature=options.get("temperature", 0)
                if options.get("do_sample") else 0)  # fmt: skip
            for (token,) in steps:
                ids += [token] * (token >= 0)
                text = tokenizer.encoding.decode(ids)
                if ends := [text.index(end) for end in until if end in text]:
                    return text[: min(ends)]
            return text

    return CheckpointLM()


def table(results, names):
    """The chosen tasks' figures beside the study's, as text."""
    lines = [f"{'task':20}{'metric':18}{'ours':>10}{'+-':>8}   study, 105B: SAN, FFN iso-parameter"]
    for name in names:
        for key, value in results.get(name, {}).items():
            metric, _, kind = key.partition(",")
            error = results[name].get(f"{metric}_stderr,{kind}")
            if isinstance(value, float) and not metric.endswith("_stderr"):
                error = f"{error:8.4f}" if isinstance(error, float) else f"{'-':>8}"
                study = ", ".join(map(str, STUDY.get(name, ()))) if metric == "acc" else ""
                lines.append(f"{name:20}{metric:18}{value:10.4f}{error}   {study or '-'}")
    return "\n".join(lines)


def main(argv):
    try:
        import lm_eval
        from lm_eval.tasks import TaskManager
    except ImportError as error:
        raise ConfigError(f"the tasks need lm-eval: pip install -e '.[eval]' ({error})") from None
    o, path, state, model, tokenizer = sample.open_checkpoint(Options, argv, print)
    names = [name.strip() for name in o.tasks.split(",")]
    manager = TaskManager(include_path=o.include_path or None)
    if unknown := [name for name in names if name not in manager.all_tasks]:
        raise ConfigError(f"no task {', '.join(unknown)} in the harness or in --include_path")
    try:
        found = lm_eval.simple_evaluate(
            harness_model(model, tokenizer, print), tasks=names, num_fewshot=o.num_fewshot,
            limit=o.limit or None, task_manager=manager, log_samples=False)  # fmt: skip
    except (OSError, ValueError) as error:  # what data sets raise without network
        raise DataError(f"a task does not run: {error}") from error
    report = {"checkpoint": path.name, "step": state.get("step"), "tokens": state.get("tokens"),
              "limit": o.limit, "num_fewshot": o.num_fewshot, "tasks": names,
              "harness": lm_eval.__version__, "results": found["results"]}
    text, path = json.dumps(report, indent=1, sort_keys=True, default=str), path.parent
    write_whole(path / "tasks.json", text.encode())
    print(f"{table(found['results'], names)}\n{path}/tasks.json: all figures")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (UserError, OSError) as error:
        fail(error)
