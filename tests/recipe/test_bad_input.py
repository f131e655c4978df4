"""Whatever somebody types: a recipe is read, or one short line says what is wrong."""

from __future__ import annotations

import itertools

import pytest

from nearkin.recipe import Recipe, RecipeError, override

DEEP = "[" * 3000 + "]" * 3000
NUMBERS = [
    "optimizer.lr",
    "optimizer.clip",
    "optimizer.clip_value",
    "optimizer.eps",
    "optimizer.weight_decay",
    "schedule.warmup",
    "seed",
    "data.seed",
    "data.difficulty",
    "data.size",
    "data.num_classes",
    "data.images_per_class",
    "training.checkpoint_minutes",
    "training.epochs",
    "training.ema",
    "training.chunk",
    "training.stop_after",
    "evaluation.recall_at",
    "evaluation.batch_size",
    "sampler.batch_size",
    "loss.margin",
    "loss.alpha",
    "loss.lr",
    "loss.memory.size",
    "network.embedding_dim",
    "network.width",
    "protocol.validation_share",
]
NAMES = [
    "loss.name",
    "loss",
    "network.name",
    "network",
    "data.name",
    "data",
    "sampler.name",
    "optimizer.name",
    "optimizer",
    "schedule.name",
    "protocol.name",
    "protocol",
    "data.transform.name",
    "training.trackers",
    "imports",
    "terms",
]
NO_NUMBERS = [
    "nan",
    "inf",
    "-inf",
    "1e308",
    "1e26",
    str(2**64),
    str(10**400),
    "[100000000000000000000000000]",
]
NO_NUMBERS += ["true", "{}", "[[]]", "[nan]", "x", '""', "1979-05-27", "1 loss.margin=2", "x" * 100_000, DEEP]
NO_NAMES = ["[[]]", "[{}]", "{name={}}", "{name=[[]]}", "{a={b={c=[[]]}}}", "1", "true", "nan", '""', "timm:"]
NO_NAMES += ["a:b", ":", "x" * 100_000, DEEP, "[" * 90 + "]" * 90, "[" + "1," * 50_000 + "1]", "{object=1}"]


def refusal(setting: str) -> str:
    with pytest.raises(RecipeError) as refused:
        Recipe.parse(override({}, [setting])).complete()
    return str(refused.value)


@pytest.mark.parametrize(("keys", "values"), [(NUMBERS, NO_NUMBERS), (NAMES, NO_NAMES)])
def test_what_no_setting_can_mean_is_refused_in_a_short_line(keys, values):
    for key, value in itertools.product(keys, values):
        assert len(refusal(f"{key}={value}")) < 1000, (key, value[:50])


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("loss.name={}", "loss.name: input should be a valid string"),
        ("terms={}", "terms: input should be 'equal', 'thesis', 'thesis_code' or 'published'"),
        ("terms=[[]]", "terms: input should be 'equal', 'thesis', 'thesis_code' or 'published'"),
        (f"optimizer.lr={'9' * 5000}", "optimizer.lr: input should be"),
        (f"seed={'9' * 5000}", "seed: "),
        ("data.difficulty=nan", "difficulty=nan must be a finite number"),
        ("data.difficulty=1e308", "must be a finite number between -1e+09 and 1e+09"),
        ("evaluation.recall_at=[100000000000000000000000000]", "less than or equal to 1000000000"),
        ("optimizer.lr=inf", "optimizer.lr: input should be"),
        ("optimizer.lr=1e-320", "greater than or equal to 0.000000000001"),
        ("optimizer.clip=nan", "optimizer.clip: input should be a finite number"),
        ("optimizer.eps=1e308", "eps=1e+308 must be a finite number"),
        ("optimizer.eps=-1", "Invalid epsilon value"),
        ("schedule.warmup=1e308", "less than or equal to 100000"),
        ("training.checkpoint_minutes=inf", "training.checkpoint_minutes: input should be"),
        (f"seed={2**64}", "less than or equal to 9223372036854775807"),
        ("seed=-1", "greater than or equal to 0"),
        ("seed=true", "seed: input should be a valid integer"),
        ("data.seed=-1", "seed=-1 must lie between 0 and 9223372036854775807"),
        (f"data.seed={2**64}", "must lie between 0 and"),
        ("seed=1 loss.margin=2", "one setting at a time"),
        ("network.name=timm:", "needs a model's name, such as timm:resnet50"),
        ("network.name=torch.nn:Linear", "torch.nn:Linear needs the keyword in_features"),
        ("data.root=", "data.root: string should have at least 1 character"),
        ("training.trackers=[{}]", "training.trackers.0.name: field required"),
        ("seed", "write table.key=value"),
    ],
)
def test_a_refusal_names_the_key_and_the_range(setting, said):
    assert said in refusal(setting)


@pytest.mark.parametrize(
    "setting",
    [
        "optimizer.eps=1e-30",
        "optimizer.betas=[0.9, 0.95]",
        f"seed={2**63 - 1}",
        "data.difficulty=0",
        "seed=7",
    ],
)
def test_what_people_mean_is_taken(setting):
    Recipe.parse(override({}, [setting])).complete()
