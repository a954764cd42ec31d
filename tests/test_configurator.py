"""configurator.py: which of default, file and flag wins, and what is refused, in one line."""
import re

import pytest

import train
from configurator import ConfigError, describe, load
from train import TrainConfig


def loaded(*argv):
    return load(TrainConfig, [str(a) for a in argv])[0]


@pytest.fixture
def config(tmp_path):
    def write(text, name="a.py"):
        (tmp_path / name).write_text(text)
        return tmp_path / name
    return write


def test_flag_beats_last_file_beats_first_file_beats_default(config):
    one, two = config("n_layer = 2\nseed = 2\nn_head = 2", "one.py"), config("seed = 3", "two.py")
    cfg, name = load(TrainConfig, [str(one), str(two), "--n_head=4"])
    assert (cfg.n_layer, cfg.seed, cfg.n_head, name) == (2, 3, 4, "two")
    assert cfg.n_embd == TrainConfig().n_embd
    assert loaded("--seed=5", one).seed == 5  # also when it stands first


def test_imports_and_underscored_names_are_scratch(config):
    file = config("import math, os\n_two = lambda x: 2 * x\nmuon_lr = _two(0.01) * math.sqrt(4)")
    assert loaded(file).muon_lr == 0.04


@pytest.mark.parametrize("text, message", [
    ("n_layr = 3", "no option is called n_layr; did you mean n_layer"),
    ("n-layer = 3", "does not run: SyntaxError"), ("n_layer = 3 +", "SyntaxError"),
    ("def helper():\n    pass", "no option is called helper"), ("n_layer = '3'", "int, not '3'"),
    ("n_layer = 3.0", "n_layer is int"), ("use_ffn = 1", "use_ffn is bool, not 1"),
    ("seed = True", "seed is int, not True"), ("1 / 0", "ZeroDivisionError"),
    ("dataset = 3", "dataset is str, not 3"), ("muon_lr = None", "muon_lr is float, not None")])
def test_files_are_refused_by_name(config, text, message):
    with pytest.raises(ConfigError, match=f"a.py.*{message}") as error:
        loaded(config(text))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("flag, message", [
    ("--learning_rte=1e-3", "no option is called learning_rte"), ("--n-layer=3", "mean n_layer"),
    ("--muon_lrr=1e-3", "did you mean muon_lr"), ("--max_steps=1.5", "max_steps is int, not 1.5"),
    ("--max_steps=-1", "max_steps is -1"), ("--max_steps=1e-5", "max_steps is int"),
    ("--max_steps=1e999", "max_steps is int"), ("--max_steps=", "max_steps is int, not ''"),
    ("--compile=maybe", "compile is bool, not 'maybe'"), ("--muon_lr=nan", "muon_lr is float"),
    ("--muon_lr=inf", "muon_lr is inf"), ("--adam_lr=-1", "adam_lr is -1"),
    ("--seed=99999999999999999999", "seed"), ("--seed=1" + 400 * "0", "64 bits"),
    ("--max_steps", "write it as --key=value"), ("-max_steps=3", "write it as --key=value"),
    ("--dtype=float15", "choose auto, bfloat16, float32"), ("--optimizer=sgd", "choose muon, ad"),
    ("--muon_order=last", "choose momentum_first, orthogonalize_first"),
    ("--nonfinite=ignore", "choose stop, skip"), ("--device=tpu", "choose auto, cpu"),
    ("--device_batch_size=0", "device_batch_size is 0"), ("--keep_last=0", "keep_last is 0"),
    ("config/micro_sam.py", "did you mean config/micro_san.py"), ("no/such.py", "no config file")])
def test_flags_are_refused_by_name(flag, message):
    with pytest.raises(ConfigError, match=re.escape(message)) as error:
        loaded(flag)
    assert "\n" not in str(error.value)


def test_warm_up_and_decay_must_fit():
    with pytest.raises(ConfigError, match="6 . decay_steps 5 are more than max_steps 10"):
        loaded("--max_steps=10", "--warmup_steps=6", "--decay_steps=5")


@pytest.mark.parametrize("flag, value", [
    ("--max_steps=1e5", 100000), ("--max_steps=1_000", 1000), ("--muon_lr=1", 1.0),
    ("--muon_lr=1e-5", 1e-5), ("--n_kv_head=2", 2), ("--out_dir=1337", "1337"), ("--resume=", ""),
    ("--out_dir=a=b", "a=b"), ("--compile", True), ("--compile=False", False),
    ("--compile=false", False), ("--compile=0", False), ("--compile=no", False),
    ("--compile=Yes", True), ("--seed=-3", -3)])
def test_values_of_flags(flag, value):
    found = getattr(loaded(flag), flag.strip("-").split("=")[0])
    assert found == value and type(found) is type(value)


def test_help_lists_every_option_with_its_comment(capsys):
    text = describe(TrainConfig)
    for key in TrainConfig.__dataclass_fields__:
        assert f"--{key}=" in text, key
    assert "unique training documents, a fixed subset; 0: all" in text
    with pytest.raises(SystemExit) as end:
        loaded("--help")
    assert end.value.code == 0 and capsys.readouterr().out == text + "\n"


def test_a_mistake_writes_nothing_and_ends_in_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        train.run(["--n_layr=3"])
    assert end.value.code == 2 and not list(tmp_path.iterdir())
    assert capsys.readouterr().err.count("\n") == 1


def test_a_value_may_follow_its_flag_and_a_truth_value_may_be_left_out():
    argv = ["--max_steps", "7", "--overwrite", "config/micro_san.py", "--resume", "--seed=3"]
    cfg, name = load(TrainConfig, argv, bare={"resume": "newest"})
    assert (cfg.max_steps, cfg.overwrite, cfg.resume, cfg.seed) == (7, True, "newest", 3)
    assert name == "micro_san"
