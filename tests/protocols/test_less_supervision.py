"""Fewer labels: what protocols take away is gone for good, and results cannot depend on it."""

from __future__ import annotations

import gc
import json
import types
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from interruptions import Interruption, StopAtBatch

import nearkin
from nearkin.data import UNKNOWN, DataSet, ImageArray, SampleSet
from nearkin.protocols import FewImages, NoisyLabels, SemiSupervised, Unsupervised, names, registry
from nearkin.protocols.less_supervision import LessSupervision, drawn_of_each_class
from nearkin.protocols.noisy_labels import doubtful_rows, nearest_classes, uniformly_wrong, wrong_rows

SETTINGS = {
    "network": {"name": "convnet", "size": 16, "width": 4, "embedding_dim": 8},
    "epochs": 2,
    "batch_size": 12,
    "views": 2,
    "progress": False,
}
CLASSES, IMAGES = 8, 7


def samples(prefix="bird", classes=CLASSES, images=IMAGES, seed=0):
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randint(0, 200, (classes, 1, 16, 16), generator=generator)
    noise = torch.randint(0, 55, (classes, images, 1, 16, 16), generator=generator)
    pixels = (centres[:, None] + noise).to(torch.uint8).flatten(0, 1)
    return SampleSet(ImageArray(pixels), [f"{prefix}{c}" for c in range(classes) for _ in range(images)])


def data_set(train=None):
    return DataSet("toy", train or samples(), samples("test", 4, 5, seed=1))


def shuffled(sample_set, hidden, seed=0):
    """The same samples and classes with the labels of the hidden rows in another order."""
    rows = hidden.nonzero().flatten()
    labels = sample_set.labels.clone()
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
    labels[rows] = labels[rows[order]]
    assert not torch.equal(labels, sample_set.labels)
    return SampleSet(sample_set.samples, labels, sample_set.class_names)


HIDING = {
    "unsupervised": Unsupervised(),
    "classes": SemiSupervised(labelled_classes=0.5),
    "images": SemiSupervised(labelled_images=0.4),
}
METHODS = {
    "instance": {"name": "instance", "batch_size": 10},
    "pseudo_labels": {"name": "pseudo_labels", "clusters": 4, "batch_size": 10},
    "stml": {"name": "stml", "batch_size": 10, "wide": 16},
}


def test_the_registered_ones_are_tested_here():
    found = [name for name in names() if issubclass(registry.get(name), LessSupervision)]
    assert found == ["few_images", "noisy_labels", "semi_supervised", "unsupervised"]


@pytest.mark.parametrize("protocol", HIDING.values(), ids=HIDING)
def test_nothing_of_the_arranged_data_leads_to_a_hidden_label(protocol):
    data = data_set()
    truth, class_names = data.train.labels, set(data.train.class_names)
    arranged = protocol.arrange(data, seed=0)
    hidden = arranged.train.labels == UNKNOWN
    assert hidden.any()
    assert arranged.train.labels.max() < arranged.train.num_classes
    gone = class_names - set(arranged.train.class_names)
    del data
    seen, waiting = set(), [arranged]
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen or isinstance(thing, type | types.ModuleType | types.FunctionType):
            continue
        seen.add(id(thing))
        assert not (isinstance(thing, str) and thing in gone)
        if isinstance(thing, torch.Tensor) and thing.shape == truth.shape:
            assert not torch.equal(thing[hidden].long(), truth[hidden])
        waiting += gc.get_referents(thing)


def weights_of(run):
    return torch.cat([value.flatten().double() for _, value in sorted(run.read_network().items())])


@pytest.mark.parametrize(
    ("kind", "method"),
    [
        ("unsupervised", "instance"),
        ("unsupervised", "pseudo_labels"),
        ("unsupervised", "stml"),
        ("classes", "stml"),
        ("images", "pseudo_labels"),
    ],
)
def test_other_hidden_labels_give_the_same_result_bit_for_bit(kind, method, tmp_path, monkeypatch):
    protocol = HIDING[kind]
    if kind == "images":  # which rows are labelled follows from all labels: it is drawn once
        drawn = drawn_of_each_class(samples().labels, lambda _: 3, 0)
        place = "nearkin.protocols.semi_supervised.drawn_of_each_class"
        monkeypatch.setattr(place, lambda *_: drawn)
    hidden = protocol.arrange(data_set(), 0).train.labels == UNKNOWN
    results, weights = [], []
    for number, train in enumerate((samples(), shuffled(samples(), hidden))):
        run = nearkin.train(
            data_set(train),
            protocol=protocol,
            unlabelled=METHODS[method],
            output=tmp_path / str(number),
            **SETTINGS,
        )
        results.append((run.path / "result.json").read_text())
        weights.append(weights_of(run))
    assert results[0] == results[1]
    assert torch.equal(*weights)


def test_other_labels_that_are_not_hidden_give_another_result(tmp_path):
    """So that the test above can fail at all."""
    protocol = SemiSupervised(labelled_classes=0.5)
    shown = protocol.arrange(data_set(), 0).train.is_labelled
    weights = []
    for number, train in enumerate((samples(), shuffled(samples(), shown))):
        run = nearkin.train(
            data_set(train), protocol=protocol, output=tmp_path / str(number), **SETTINGS | {"epochs": 1}
        )
        weights.append(weights_of(run))
    assert not torch.equal(*weights)


def test_the_labelled_part_alone_is_a_training_on_a_smaller_set(tmp_path):
    """The baseline: what is not labelled plays no part at all."""
    data = data_set()
    arranged = SemiSupervised(labelled_classes=0.5).arrange(data, 0).train
    part = arranged.labelled_part()
    assert (part.num_classes, len(part)) == (4, 4 * IMAGES)
    whole = nearkin.train(
        data,
        protocol={"name": "semi_supervised", "labelled_classes": 0.5},
        output=tmp_path / "a",
        **SETTINGS,
    )
    small = nearkin.train(replace(data, train=part), protocol="standard", output=tmp_path / "b", **SETTINGS)
    assert torch.equal(weights_of(whole), weights_of(small))
    assert whole.result.test == small.result.test
    assert whole.result.data.train.samples == 4 * IMAGES
    assert "28 of 56 training samples have a label, of 4 of 8 classes" in whole.result.data.notes


def test_data_that_was_opened_otherwise_is_refused():
    recipe = nearkin.Recipe.parse(
        {"network": SETTINGS["network"], "protocol": {"name": "few_images"}, "sampler": {"batch_size": 12}}
    )
    with pytest.raises(ValueError, match="toy has all its labels"):
        recipe.build(data=data_set())
    arranged = FewImages().arrange(data_set(), 0)
    assert recipe.build(data=arranged).data is arranged


def test_without_labels_a_method_must_be_named(tmp_path):
    with pytest.raises(ValueError, match="no training sample has a label: say how to learn without"):
        nearkin.train(data_set(), protocol="unsupervised", output=tmp_path / "run", **SETTINGS)
    with pytest.raises(ValueError, match=r"compares 2 views of a sample: set data\.views=2"):
        nearkin.train(
            data_set(),
            protocol="unsupervised",
            unlabelled="stml",
            output=tmp_path / "run",
            **SETTINGS | {"views": 1},
        )
    assert not (tmp_path / "run").exists()


def test_a_data_sets_own_validation_classes_are_training_classes_here():
    data = replace(data_set(), validation=samples("held", 2, 3))
    assert len(Unsupervised().arrange(data, 0).train) == CLASSES * IMAGES + 6
    arranged = FewImages(2).arrange(data, 0)
    assert arranged.validation is None
    assert arranged.train.labels.bincount().tolist() == [2] * (CLASSES + 2)


@given(st.integers(0, 20), st.floats(0.01, 1.0), st.floats(0.01, 1.0))
def test_smaller_shares_are_parts_of_larger_ones(seed, one, other):
    smaller, larger = sorted((one, other))
    everything = samples()
    for key in ("labelled_classes", "labelled_images"):
        few, many = (
            SemiSupervised(**{key: share}).weakened(everything, seed)[0].is_labelled
            for share in (smaller, larger)
        )
        assert (few <= many).all()
        assert few.sum() >= 2
    few, many = (set(wrong_rows(50, share, seed).tolist()) for share in (smaller, larger))
    assert few <= many


def test_shares_are_of_classes_or_of_every_classs_images():
    everything = samples()
    by_class = SemiSupervised(labelled_classes=0.25).weakened(everything, 0)[0]
    assert by_class.labels[by_class.is_labelled].bincount().tolist() == [IMAGES] * 2
    by_image = SemiSupervised(labelled_images=0.4).weakened(everything, 0)[0]
    assert by_image.labels[by_image.is_labelled].bincount().tolist() == [3] * CLASSES
    assert torch.equal(by_image.labels[by_image.is_labelled], everything.labels[by_image.is_labelled])
    assert by_image.class_names == everything.class_names
    every = SemiSupervised(labelled_images=1.0).weakened(everything, 0)[0]
    assert torch.equal(every.labels, everything.labels)


@given(st.integers(2, 9), st.integers(0, 30), st.floats(0, 0.99))
def test_so_many_labels_are_wrong_and_all_other_classes_are_drawn(classes, seed, share):
    labels = torch.arange(classes).repeat_interleave(200)
    wrong = wrong_rows(len(labels), share, seed)
    changed = uniformly_wrong(labels, wrong, seed)
    assert (changed != labels).nonzero().flatten().tolist() == sorted(wrong.tolist())
    assert len(wrong) == round(share * len(labels))
    for label in range(classes):
        drawn = changed[(labels == label) & (changed != labels)].bincount(minlength=classes)
        expected = drawn.sum() / (classes - 1)
        others = torch.arange(classes) != label
        assert (drawn[others] - expected).abs().max() <= 6 * (expected + 1).sqrt()


def test_noise_by_the_nearest_class_is_what_trains(tmp_path, monkeypatch):
    given_to = []
    original = nearkin.protocols.standard.train

    def spied(task, run, embedder, train_samples, **keywords):
        given_to.append((task.data.train.labels, train_samples.labels, embedder))
        return original(task, run, embedder, train_samples, **keywords)

    monkeypatch.setattr("nearkin.protocols.standard.train", spied)
    protocol = NoisyLabels(0.3, "nearest")
    run = nearkin.train(data_set(), protocol=protocol, output=tmp_path / "run", **SETTINGS | {"epochs": 1})
    in_task, labels, embedder = given_to[0]
    truth = samples().labels
    wrong = wrong_rows(len(truth), 0.3, 0)
    assert torch.equal(in_task, labels)
    assert (labels != truth).nonzero().flatten().tolist() == wrong.sort().values.tolist()
    fresh = (
        nearkin.Recipe.parse({"network": SETTINGS["network"], "protocol": "standard"})
        .build(data=data_set())
        .embedder
    )
    features = torch.nn.functional.normalize(fresh.embed(samples(), what="features").double())
    means = torch.nn.functional.normalize(
        torch.stack([features[truth == label].mean(dim=0) for label in range(CLASSES)])
    )
    for row in wrong.tolist():
        own = int(truth[row])
        others = [label for label in range(CLASSES) if label != own]
        assert int(labels[row]) == max(others, key=lambda label: float(means[own] @ means[label]))
    assert "the labels of 17 of 56 training samples are wrong (nearest)" in run.result.data.notes
    assert embedder is not None


def test_the_nearest_class_is_never_the_own_one():
    features = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]])
    assert nearest_classes(features, torch.arange(3)).tolist() == [1, 0, 1]


@pytest.mark.parametrize("noise", ["uniform", "nearest"])
def test_labels_that_no_neighbour_has_are_taken_away_and_counted(noise, tmp_path, monkeypatch):
    given_to = []
    original = nearkin.protocols.standard.train

    def spied(task, run, embedder, train_samples, **keywords):
        given_to.append(train_samples.labels)
        return original(task, run, embedder, train_samples, **keywords)

    monkeypatch.setattr("nearkin.protocols.standard.train", spied)
    protocol = {"name": "noisy_labels", "share": 0.25, "noise": noise, "clean": "neighbours", "neighbours": 4}
    run = nearkin.train(data_set(), protocol=protocol, output=tmp_path / "run", **SETTINGS | {"epochs": 1})
    (labels,) = given_to
    quality = json.loads((run.path / "label_quality.json").read_text())
    wrong = wrong_rows(len(labels), 0.25, 0)
    doubted = (labels == UNKNOWN).nonzero().flatten()
    found = len({*wrong.tolist()} & {*doubted.tolist()})
    assert quality == {
        "samples": CLASSES * IMAGES,
        "wrong": 14,
        "doubted": len(doubted),
        "found": found,
        "precision": found / len(doubted),
        "recall": found / 14,
    }
    assert quality["precision"] > 0.25  # better than chance, by far
    right = torch.ones(len(labels), dtype=torch.bool)
    right[wrong] = False
    kept = right & (labels != UNKNOWN)
    assert torch.equal(labels[kept], samples().labels[kept])
    assert run.result.data.train.samples == len(labels) - len(doubted)


def test_sub_centres_take_labels_away_and_a_killed_run_ends_alike(tmp_path, monkeypatch):
    monkeypatch.setattr("nearkin.training.engine._LOOK_EVERY", 1)
    given_to = []
    original = nearkin.protocols.standard.train

    def spied(task, run, embedder, train_samples, **keywords):
        given_to.append(train_samples.labels)
        return original(task, run, embedder, train_samples, **keywords)

    monkeypatch.setattr("nearkin.protocols.standard.train", spied)
    protocol = {"name": "noisy_labels", "share": 0.25, "clean": "sub_centres", "degrees": 90.0}
    settings = SETTINGS | {"epochs": 4, "training": {"checkpoint_minutes": 1e-9}, "protocol": protocol}
    run = nearkin.train(data_set(), output=tmp_path / "run", **settings)
    (labels,) = given_to
    quality = json.loads((run.path / "label_quality.json").read_text())
    doubted = {*(labels == UNKNOWN).nonzero().flatten().tolist()}
    found = doubted & {*wrong_rows(len(labels), 0.25, 0).tolist()}
    assert (quality["doubted"], quality["found"]) == (len(doubted), len(found))
    assert len(doubted) < len(labels)
    assert run.result.data.train.samples == len(labels) - len(doubted)
    assert not list((run.path / "selection_of_labels").rglob("step-*"))
    for count in (3, 20):  # in the training that cleans, and in the one after it
        with pytest.raises(Interruption):
            nearkin.train(data_set(), output=tmp_path / "cut", **settings | {"progress": StopAtBatch(count)})
    assert (tmp_path / "cut" / "metrics.jsonl").exists()
    cut = nearkin.train(data_set(), output=tmp_path / "cut", **settings)
    assert (cut.path / "result.json").read_bytes() == (run.path / "result.json").read_bytes()
    assert json.loads((cut.path / "label_quality.json").read_text()) == quality


def test_cleaning_that_would_leave_no_label_is_an_error(tmp_path):
    assert NoisyLabels(neighbours=1).neighbours == 1  # the fewest
    protocol = {"name": "noisy_labels", "share": 0.25, "clean": "sub_centres", "degrees": 1e-3}
    with pytest.raises(
        ValueError, match=r"all samples are further than 0\.001 degrees .* larger protocol.degrees"
    ):
        nearkin.train(data_set(), output=tmp_path / "run", **SETTINGS | {"epochs": 1, "protocol": protocol})


def test_doubts_are_those_of_plain_loops():
    generator = torch.Generator().manual_seed(0)
    features, labels = torch.randn(40, 3, generator=generator), torch.randint(6, (40,), generator=generator)
    units = torch.nn.functional.normalize(features)
    expected = []
    for row in range(40):
        near = [int(other) for other in (units @ units[row]).argsort(descending=True) if other != row][:5]
        if all(labels[other] != labels[row] for other in near):
            expected.append(row)
    assert doubtful_rows(features, labels, 5).tolist() == expected
    assert 0 < len(expected) < 40


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: NoisyLabels(clean="centres"), "clean='centres' must be one of: neighbours, sub_centres"),
        (lambda: NoisyLabels(degrees=180), "degrees=180 must lie between 0 and 180"),
        (lambda: NoisyLabels(degrees=0), "degrees=0 must lie between 0 and 180"),
        (
            lambda: uniformly_wrong(torch.zeros(4, dtype=torch.long), torch.tensor([1]), 0),
            "noisy_labels needs two training classes or more",
        ),
        (lambda: NoisyLabels(neighbours=0), "neighbours=0 must be at least 1"),
        (SemiSupervised, "needs protocol.labelled_classes or protocol.labelled_images"),
        (lambda: SemiSupervised(0.1, 0.1), "and not both"),
        (lambda: SemiSupervised(labelled_classes=0.0), "labelled_classes=0.0 must be above 0"),
        (lambda: NoisyLabels(1.0), "share=1.0 must be at least 0 and below 1"),
        (lambda: NoisyLabels(0.1, "pairs"), "noise='pairs' must be one of: uniform, nearest"),
        (lambda: FewImages(1), "images_per_class=1 must be at least 2"),
    ],
)
def test_wrong_values_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_final_training_is_refused_where_labels_are_hidden(tmp_path):
    settings = SETTINGS | {"output": tmp_path / "run", "epochs": 1}
    with pytest.raises(ValueError, match="final"):
        nearkin.train(data_set(), protocol="unsupervised", unlabelled="instance", final=True, **settings)
