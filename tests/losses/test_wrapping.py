"""Anybody's loss as one of ours."""

from __future__ import annotations

import functools
import warnings

import pytest
import torch
from pytorch_metric_learning import losses as pml

from nearkin import losses
from nearkin.losses.testing import LABELS, batch


def far_apart(embeddings, labels):
    """Negatives shall be dissimilar."""
    z = torch.nn.functional.normalize(embeddings)
    return ((z @ z.T) * (labels[:, None] != labels)).relu().mean()


def aware(embeddings, labels, *, ids=None, references=None, reference_labels=None):
    value = embeddings.mean() * 0
    if ids is not None:
        value = value + ids.sum()
    return value if references is None else value + 1000 * len(references) + reference_labels.sum()


class Centres(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.centres = torch.nn.Parameter(torch.ones(40, 8))
        self.fixed = torch.nn.Parameter(torch.ones(2), requires_grad=False)

    def forward(self, embeddings, labels):
        return (embeddings - self.centres[labels]).square().mean()


def test_one_of_ours_is_returned_as_it_is():
    loss = losses.build("contrastive")
    assert losses.as_loss(loss) is loss
    assert losses.as_loss(losses.as_loss(far_apart)).loss is far_apart


@pytest.mark.parametrize("given", [far_apart, functools.partial(far_apart), Centres()])
def test_value_and_gradient_are_those_of_the_wrapped(given):
    loss = losses.as_loss(given)
    assert isinstance(loss, losses.Loss)
    x, y = batch().requires_grad_(), batch().requires_grad_()
    value, expected = loss(x, LABELS), given(y, LABELS)
    assert torch.equal(value, expected)
    assert torch.equal(torch.autograd.grad(value, x)[0], torch.autograd.grad(expected, y)[0])


@pytest.mark.parametrize(
    "theirs",
    [
        pml.ContrastiveLoss(),
        pml.TripletMarginLoss(),
        pml.SupConLoss(),
        pml.ProxyAnchorLoss(num_classes=40, embedding_size=8),
        pml.CircleLoss(),
    ],
    ids=lambda loss: type(loss).__name__,
)
def test_losses_of_pytorch_metric_learning(theirs):
    loss = losses.as_loss(theirs)
    x = batch().requires_grad_()
    value = loss(x, LABELS)
    assert torch.equal(value, theirs(x, LABELS))
    value.backward()
    assert x.grad.any()
    assert {id(p) for group in loss.param_groups(0.1) for p in group["params"]} == {
        id(p) for p in theirs.parameters()
    }
    assert type(theirs).__name__ in repr(loss)
    assert losses.describe(loss).class_name == type(theirs).__name__


def test_learnable_parameters_of_a_module_are_found():
    (group,) = losses.as_loss(Centres()).param_groups(lr=0.3)
    assert (group["name"], group["lr"]) == ("centres", 0.3)
    assert losses.as_loss(far_apart).param_groups(lr=0.3) == []


def test_keywords_are_passed_only_where_they_are_taken():
    ids = torch.tensor([3, 4])
    x, y = torch.eye(2), torch.tensor([0, 1])
    plain, knowing = losses.as_loss(far_apart), losses.as_loss(aware)
    assert (plain.takes("ids"), knowing.takes("ids")) == (False, True)
    assert torch.equal(plain(x, y, ids=ids), plain(x, y))
    assert knowing(x, y, ids=ids) == 7
    assert knowing(x, y, references=x, reference_labels=y) == 2001
    with pytest.raises(ValueError, match="far_apart takes no references"):
        plain(x, y, references=x)


def test_a_memory_takes_a_function_that_takes_references():
    memory = losses.CrossBatchMemory(aware, size=4)
    x, y = torch.eye(2), torch.tensor([0, 1])
    memory(x, y)
    assert memory(x, y) == 2001
    with pytest.raises(ValueError, match="far_apart cannot use a memory"):
        losses.CrossBatchMemory(far_apart, size=4)


def test_half_precision_is_computed_in_float32():
    loss = losses.as_loss(far_apart)
    x = batch(torch.bfloat16).requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = loss(x, LABELS)
    assert torch.equal(value, far_apart(x.float(), LABELS))
    value.backward()
    assert x.grad.dtype == torch.bfloat16


def test_a_constant_still_goes_backward():
    x = batch().requires_grad_()
    losses.as_loss(lambda embeddings, labels: torch.zeros(()))(x, LABELS).backward()
    assert not x.grad.any()


def test_a_value_without_a_gradient_is_refused():
    loss = losses.as_loss(lambda embeddings, labels: embeddings.detach().square().mean() + 1)
    with pytest.raises(ValueError, match=r"gives [\d.]+ without a gradient, so that nothing would be learnt"):
        loss(batch().requires_grad_(), LABELS)
    assert loss(batch(), LABELS) > 1  # nobody asks for a gradient there


def test_a_tuple_is_refused_in_a_few_words():
    loss = losses.as_loss(lambda embeddings, labels: (embeddings.sum(), embeddings))
    with pytest.raises(ValueError, match="must give a scalar tensor, not a tuple of 2$"):
        loss(batch(), LABELS)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("triplet", r"losses\.build\('triplet'\)"),
        (Centres, "is a class, not a loss: give an instance"),
        (3, "a loss is a module or function"),
    ],
)
def test_what_is_no_loss_is_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        losses.as_loss(wrong)


@pytest.mark.parametrize(
    ("value", "message"), [(torch.ones(3), r"not a tensor of shape \(3,\)"), (0.5, "not 0.5"), (None, "None")]
)
def test_what_gives_no_scalar_is_told(value, message):
    with pytest.raises(ValueError, match=f"must give a scalar tensor, .*{message}"):
        losses.as_loss(lambda embeddings, labels: value)(batch(), LABELS)


def test_wrong_inputs_are_refused():
    loss = losses.as_loss(far_apart)
    for embeddings, labels in [(batch()[0], LABELS), (batch(), LABELS[:3]), (batch() * torch.nan, LABELS)]:
        with pytest.raises(ValueError, match="embeddings"):
            loss(embeddings, labels)


def test_print_and_description_say_what_is_wrapped():
    loss = losses.as_loss(far_apart)
    assert f"{__name__}:far_apart" in repr(loss)
    about = losses.describe(loss)
    assert (about.name, about.summary) == (f"{__name__}:far_apart", "Negatives shall be dissimilar.")
    assert losses.describe(losses.build("nca")) == losses.describe("nca")
    assert "lambda" in repr(losses.as_loss(lambda embeddings, labels: embeddings.sum()))


def test_which_losses_compare_samples():
    for name in losses.names():
        assert losses.compares_samples(name) != losses.describe(name).needs_classes
        built = losses.build(name, num_classes=3, embedding_dim=2)
        assert losses.compares_samples(built) == losses.compares_samples(name)
    assert losses.compares_samples(far_apart)
    assert losses.compares_samples(losses.as_loss(far_apart))
    assert not losses.compares_samples(losses.as_loss(far_apart, compares_samples=False))
    centres = Centres()
    centres.compares_samples = False
    assert not losses.compares_samples(losses.as_loss(centres))
    proxies = losses.build("proxy_anchor", num_classes=2, embedding_dim=2)
    assert not losses.compares_samples(losses.LanguageGuidance(proxies, ["a", "b"], torch.eye(2)))


@pytest.mark.parametrize("given", [far_apart, Centres()])
def test_compiled_equals_eager(given):
    torch._dynamo.reset()
    loss, x, y = losses.as_loss(given), batch().requires_grad_(), batch().requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch itself, about graphs that break
        value = torch.compile(loss, backend="eager")(x, LABELS)
    expected = loss(y, LABELS)
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(torch.autograd.grad(value, x), torch.autograd.grad(expected, y))


def test_one_value_per_sample_where_the_wrapped_loss_gives_it():
    def entropy(embeddings, labels, reduction="mean"):
        return torch.nn.functional.cross_entropy(embeddings, labels % 8, reduction=reduction)

    loss = losses.as_loss(entropy)
    values = loss(batch(), LABELS, reduction="none")
    torch.testing.assert_close(values.mean(), loss(batch(), LABELS, reduction="mean"))
    loss.reduction = "none"
    assert torch.equal(loss(batch(), LABELS), values)
    with pytest.raises(ValueError, match="far_apart takes no reduction"):
        losses.as_loss(far_apart)(batch(), LABELS, reduction="none")
    with pytest.raises(ValueError, match="far_apart takes no weights"):
        losses.as_loss(far_apart)(batch(), LABELS, weights=torch.ones(12))
