"""The checks that every loss must pass, for ours and for yours.

``check_loss(my_loss)`` runs them all on a registered name, a class, a function that makes a loss, or a plain
function ``(embeddings, labels) -> scalar``; an ``AssertionError`` says in one line which promise is broken.
Our own test suite runs the same checks over every registered name.
"""

from __future__ import annotations

import copy
import inspect
import itertools
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from nearkin.losses.base import Loss, build, get, names
from nearkin.losses.description import describe
from nearkin.losses.pair import PairLoss
from nearkin.losses.search_space import Range
from nearkin.losses.wrapping import LossFunction, WrappedLoss, as_loss

Make = Callable[[], Loss]

CLASSES, DIM = 40, 8
LABELS = torch.tensor([0, 0, 0, 1, 1, 2, 3, 3, 3, 3, 39, 0])
"""Unequal classes, classes of one sample, and absent ones."""


def check_loss(
    loss: str | type[nn.Module] | Callable[[], nn.Module] | LossFunction,
    *,
    stopped_gradients: bool = False,
    surrogate: LossFunction | None = None,
    **hyperparameters: Any,
) -> None:
    """Run every check on a loss.

    Args:
        loss: a registered name; a class; a function without arguments that makes a loss; or a plain function
            ``(embeddings, labels) -> scalar``.
        stopped_gradients: whether the loss treats a part of its value as a constant on purpose (as the Circle
            loss does its weights), so that its gradient is not its derivative: then that is not checked. A
            class says so itself by its attribute ``stops_gradients``.
        surrogate: a function ``(embeddings, labels) -> scalar`` whose gradient such a loss must have.
        hyperparameters: for a name or a class.

    Raises:
        AssertionError: one line that names the loss, the check and what is wrong.

    >>> check_loss("contrastive", margin=0.3)
    >>> check_loss(lambda embeddings, labels: embeddings[0].square().sum())
    Traceback (most recent call last):
    AssertionError: <lambda> fails check_order_does_not_matter: another order...
    """
    __tracebackhide__ = True
    make, what = _maker_of(loss, hyperparameters)
    for check in CHECKS:
        if check is check_gradient_is_the_derivative and (stopped_gradients or surrogate is not None):
            continue
        _run(check, make, what)
    if surrogate is not None:
        _run(check_gradient_is_that_of(surrogate), make, what)
    name = loss if isinstance(loss, str) else next((name for name in names() if get(name) is loss), None)
    if name is not None:
        _run(check_description, name, what)
        _run(check_search_space, name, what)


def _run(check: Callable[[Any], None], subject: Any, what: str) -> None:
    """Run a check; what goes wrong becomes one line."""
    __tracebackhide__ = True
    try:
        check(subject)
    except Exception as error:
        lines = str(error).strip().splitlines() or ["no message"]
        kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
        raise AssertionError(f"{what} fails {check.__name__}: {kind}{lines[0][:200]}") from None


def _maker_of(loss: Any, hyperparameters: dict[str, Any]) -> tuple[Make, str]:
    """What makes a fresh loss at each call, and how to call it in a sentence."""
    if isinstance(loss, str):
        return maker(loss, **hyperparameters), loss
    what = getattr(loss, "__name__", type(loss).__name__)
    if isinstance(loss, nn.Module):
        return lambda: copy.deepcopy(as_loss(loss)), what
    parameters = inspect.signature(loss).parameters
    if inspect.isclass(loss):
        sizes = {"num_classes": CLASSES, "embedding_dim": DIM, "embedding_size": DIM}
        given = {size: value for size, value in sizes.items() if size in parameters}
        random = "generator" in parameters

        def build_class() -> nn.Module:
            drawn = {"generator": torch.Generator().manual_seed(3)} if random else {}
            made: Any = loss(**{**given, **drawn, **hyperparameters})
            return cast(nn.Module, made)

        return _seeded(build_class), what
    required = [p for p in parameters.values() if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
    return (lambda: as_loss(loss)) if len(required) >= 2 else _seeded(loss), what


def _seeded(make: Callable[[], nn.Module]) -> Make:
    """The same loss at each call, also where its parameters start from the global generator."""

    def made() -> Loss:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            return as_loss(make())

    return made


def maker(name: str, **hyperparameters: Any) -> Make:
    """A function that builds the same fresh loss at each call, of a size that suits the checks."""
    return lambda: build(
        name,
        num_classes=CLASSES,
        embedding_dim=DIM,
        generator=torch.Generator().manual_seed(3),
        **hyperparameters,
    )


def batch(dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    """Random embeddings ``(B, D)`` for ``LABELS``."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(len(LABELS), DIM, dtype=torch.float64, generator=generator).to(dtype)


def value_and_gradient(
    make: Make, embeddings: Tensor, labels: Tensor, **keywords: Any
) -> tuple[Tensor, Tensor]:
    """The value of a fresh loss and its gradient with respect to the embeddings."""
    embeddings = embeddings.detach().clone().requires_grad_()
    value = make().to(embeddings.dtype)(embeddings, labels, **keywords)
    (gradient,) = torch.autograd.grad(value, embeddings)
    return value.detach(), gradient


def check_value_is_a_finite_scalar(make: Make) -> None:
    """One finite number of the right dtype."""
    value = make()(batch(), LABELS)
    assert value.shape == (), f"the value has shape {tuple(value.shape)}"
    assert value.dtype == torch.float32, f"float32 embeddings give a {value.dtype} value"
    assert torch.isfinite(value), f"the value is {value}"


def check_gradients_reach_embeddings_and_parameters(make: Make) -> None:
    """Nothing learnable is forgotten."""
    loss, embeddings = make(), batch().requires_grad_()
    loss(embeddings, LABELS).backward()
    for name, tensor in [("embeddings", embeddings), *loss.named_parameters()]:
        assert tensor.grad is not None, f"no gradient reaches {name}"
        assert torch.isfinite(tensor.grad).all(), f"the gradient of {name} is not finite"
        assert tensor.grad.any(), f"the gradient of {name} is zero"


def check_gradient_is_the_derivative(make: Make) -> None:
    """``gradcheck`` in float64, of embeddings and parameters; not where a loss stops gradients on purpose."""
    if make().stops_gradients:
        return
    embeddings = batch(torch.float64).requires_grad_()
    parameters = tuple(p.detach().requires_grad_() for p in make().double().parameters())

    def value(embeddings: Tensor, *parameters: Tensor) -> Tensor:
        loss = make().double()
        names = [name for name, _ in loss.named_parameters()]
        given = dict(zip(names, parameters, strict=True))
        result: Tensor = torch.func.functional_call(loss, given, (embeddings, LABELS))
        return result

    assert torch.autograd.gradcheck(value, (embeddings, *parameters), rtol=1e-4, atol=1e-6, fast_mode=True)


def check_gradient_is_that_of(surrogate: LossFunction) -> Callable[[Make], None]:
    """A check that the gradient by the embeddings is that of another function."""

    def check_gradient_is_that_of_the_surrogate(make: Make) -> None:
        _, gradient = value_and_gradient(make, batch(torch.float64), LABELS)
        _, expected = value_and_gradient(lambda: as_loss(surrogate), batch(torch.float64), LABELS)
        _assert_close(gradient, expected, "the gradient is not that of the surrogate")

    return check_gradient_is_that_of_the_surrogate


def check_gradient_grows_with_the_loss(make: Make) -> None:
    """Four times the loss, four times every gradient; and the same again from the same graph."""
    loss, embeddings = make(), batch().requires_grad_()
    value = loss(embeddings, LABELS)
    inputs = (embeddings, *loss.parameters())
    plain = torch.autograd.grad(value, inputs, retain_graph=True)
    fourfold = torch.autograd.grad(value * 4, inputs, retain_graph=True)
    again = torch.autograd.grad(value, inputs)
    for one, four, repeated in zip(plain, fourfold, again, strict=True):
        _assert_close(four, one * 4, "the gradient of 4 L is not 4 times that of L")
        _assert_close(repeated, one, "a second look at the gradient differs")


def check_same_without_gradient(make: Make) -> None:
    """The shortcut for evaluation gives the same value."""
    with torch.no_grad():
        without = make()(batch(), LABELS)
    value, _ = value_and_gradient(make, batch(), LABELS)
    _assert_close(without, value, "the value under no_grad differs")


def check_order_does_not_matter(make: Make) -> None:
    """A permuted batch has the same loss and a permuted gradient."""
    if _is_random(make):
        return
    order = torch.randperm(len(LABELS), generator=torch.Generator().manual_seed(1))
    value, gradient = value_and_gradient(make, batch(torch.float64), LABELS)
    permuted, permuted_gradient = value_and_gradient(make, batch(torch.float64)[order], LABELS[order])
    _assert_close(permuted, value, "another order of the batch gives another value")
    _assert_close(permuted_gradient, gradient[order], "another order of the batch gives another gradient")


def check_float_dtypes(make: Make) -> None:
    """Half precision is computed in float32, float64 stays float64."""
    for dtype in (torch.bfloat16, torch.float16):
        embeddings = batch(dtype).requires_grad_()
        value = make()(embeddings, LABELS)
        assert value.dtype == torch.float32, f"{dtype} embeddings give a {value.dtype} value"
        _assert_close(value, make()(embeddings.float(), LABELS), f"{dtype} is not computed in float32")
        value.backward()
        assert embeddings.grad is not None
        assert torch.isfinite(embeddings.grad).all(), f"{dtype} gradients are not finite"
        if not isinstance(make(), WrappedLoss):
            half = make().to(dtype)(embeddings, LABELS)
            _assert_close(half.float(), value, f"as {dtype}", rtol=0.1, atol=0.1)
    single, double = make()(batch(), LABELS), make().double()(batch(torch.float64), LABELS)
    assert double.dtype == torch.float64
    _assert_close(single.double(), double, "float32 and float64 differ", rtol=1e-4, atol=1e-5)


def check_label_dtypes(make: Make) -> None:
    """Any integer dtype will do."""
    value = make()(batch(), LABELS)
    for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32):
        _assert_close(make()(batch(), LABELS.to(dtype)), value, f"{dtype} labels differ")


def check_autocast_changes_nothing(make: Make) -> None:
    """Mixed precision around the loss does not reach into it."""
    plain, plain_gradient = value_and_gradient(make, batch(), LABELS)
    embeddings = batch().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = make()(embeddings, LABELS)
        if not isinstance(make(), WrappedLoss):  # whose backward pass autocast does reach, inside of it
            value.backward()
    if embeddings.grad is None:
        value.backward()
    gradient = embeddings.grad
    assert gradient is not None
    _assert_close(value, plain, "autocast changes the value")
    _assert_close(gradient, plain_gradient, "autocast changes the gradient")


def check_poor_batches(make: Make) -> None:
    """One class, no positives, one sample, no sample: finite, and nothing is learnt from less than a pair."""
    poor = {
        "one class": torch.zeros_like(LABELS),
        "two samples of one class": torch.zeros(2, dtype=torch.long),
        "no positives": torch.arange(len(LABELS)),
        "one sample": torch.zeros(1, dtype=torch.long),
        "no sample": torch.zeros(0, dtype=torch.long),
    }
    if isinstance(make(), WrappedLoss):
        del poor["no sample"]  # which training never gives; most people's means fail there
    for what, labels in poor.items():
        value, gradient = value_and_gradient(make, batch()[: len(labels)], labels)
        assert torch.isfinite(value), f"{what}: the value is {value}"
        assert torch.isfinite(gradient).all(), f"{what}: the gradient is not finite"
        if what == "no sample" or (what == "one sample" and isinstance(make(), PairLoss)):
            assert value == 0, f"{what}: the value is {value}, not 0"
            assert not gradient.any(), f"{what}: the gradient is not 0"


def check_degenerate_embeddings(make: Make) -> None:
    """Repeated samples (also across classes), opposite ones and zero vectors: finite everywhere."""
    repeated = batch()
    repeated[1] = repeated[0]
    repeated[5] = repeated[0]
    opposite = batch()
    opposite[1] = -2 * opposite[0]
    opposite[5] = -opposite[0]
    zero = batch()
    zero[[0, 4]] = 0
    cases = {
        "repeated samples": repeated,
        "opposite samples": opposite,
        "zero vectors": zero,
        "only zeros": torch.zeros_like(zero),
        "all equal": batch()[:1].repeat(len(LABELS), 1),
        "tiny": batch() * 1e-30,
        "huge": batch() * 1e6,
    }
    for what, embeddings in cases.items():
        value, gradient = value_and_gradient(make, embeddings, LABELS)
        assert torch.isfinite(value), f"{what}: the value is {value}"
        assert torch.isfinite(gradient).all(), f"{what}: the gradient is not finite"


def check_determinism(make: Make) -> None:
    """Equal losses with equal generators give equal values, call after call."""
    first, second = make(), make()
    for seed in range(3):
        value, again = first(batch(seed=seed), LABELS), second(batch(seed=seed), LABELS)
        assert torch.equal(value, again), f"call {seed}: {value} is not {again}"


def check_state_resumes(make: Make) -> None:
    """A loss restored from its ``state_dict`` continues bit for bit."""
    loss = make()
    loss(batch(), LABELS)
    state = {name: tensor.clone() for name, tensor in loss.state_dict().items()}
    assert all(isinstance(tensor, Tensor) for tensor in state.values()), "state_dict must hold tensors only"
    resumed = make()
    resumed.load_state_dict(state)
    copied = copy.deepcopy(loss)
    value = loss(batch(seed=1), LABELS)
    assert torch.equal(value, resumed(batch(seed=1), LABELS)), "a resumed loss continues differently"
    assert torch.equal(value, copied(batch(seed=1), LABELS)), "a copied loss continues differently"


def check_param_groups(make: Make) -> None:
    """Every learnable parameter, once, with its learning rate."""
    loss = make()
    grouped = [parameter for group in loss.param_groups(0.5) for parameter in group["params"]]
    learnable = [parameter for parameter in loss.parameters() if parameter.requires_grad]
    assert {id(p) for p in grouped} == {id(p) for p in learnable}, "param_groups misses a learnable parameter"
    assert len(grouped) == len(learnable), "param_groups gives a parameter twice"
    assert all(group["lr"] == 0.5 for group in loss.param_groups(0.5))


def check_bad_inputs_are_refused(make: Make) -> None:
    """A clear ``ValueError`` for each."""
    nan, infinite = batch(), batch()
    nan[3, 2] = float("nan")
    infinite[0, 0] = float("inf")
    bad: dict[str, tuple[Tensor, Tensor]] = {
        "NaN": (nan, LABELS),
        "infinite": (infinite, LABELS),
        "a vector of embeddings": (batch()[0], LABELS),
        "a cube of embeddings": (batch()[None], LABELS),
        "integer embeddings": (batch().long(), LABELS),
        "too few labels": (batch(), LABELS[:-1]),
        "float labels": (batch(), LABELS.float()),
        "boolean labels": (batch(), LABELS > 0),
        "scalar labels": (batch(), LABELS[0]),
    }
    loss = make()
    if loss.needs_classes:
        bad["labels above the classes"] = (batch(), LABELS + CLASSES)
        bad["negative labels"] = (batch(), LABELS - 1)
        bad["another embedding_dim"] = (batch()[:, :-1], LABELS)
    for what, (embeddings, labels) in bad.items():
        complaint = _complaint(loss, embeddings, labels)
        assert complaint is not None, f"{what}: accepted"
        assert len(complaint) > 20, f"{what}: the error says too little: {complaint}"


def check_validation_can_be_switched_off(make: Make) -> None:
    """``loss.validate = False`` changes no value."""
    loss = make()
    value = loss(batch(), LABELS)
    quick = make()
    quick.validate = False
    assert torch.equal(quick(batch(), LABELS), value)


def check_values_of_samples(make: Make) -> None:
    """Values per sample have the loss as their mean, and weights of 1 change nothing; gradients included."""
    loss = make()
    if isinstance(loss, WrappedLoss):
        return
    if complaint := _complaint(loss, batch(), LABELS, reduction="none"):
        assert "one value per" in complaint, complaint  # it states a scalar only
        return
    value, gradient = value_and_gradient(make, batch(torch.float64), LABELS)
    ones = torch.ones(len(LABELS), dtype=torch.float64)
    by_sample = make().double()(batch(torch.float64), LABELS, reduction="none")
    assert by_sample.shape == LABELS.shape, f"the values have shape {tuple(by_sample.shape)}"
    _assert_close(by_sample.mean(), value, "the mean of the values is not the loss")
    weighted, weighted_gradient = value_and_gradient(make, batch(torch.float64), LABELS, weights=ones)
    _assert_close(weighted, value, "weights of 1 change the value")
    _assert_close(weighted_gradient, gradient, "weights of 1 change the gradient")


def check_references(make: Make) -> None:
    """A pair loss takes a memory, differentiates into it, and knows an empty one."""
    if not isinstance(make(), PairLoss):
        return
    embeddings, references = batch(seed=1).requires_grad_(), batch(seed=2).requires_grad_()
    value = make()(embeddings[:7], LABELS[:7], references=references, reference_labels=LABELS)
    value.backward()
    for what, tensor in (("embeddings", embeddings), ("references", references)):
        assert tensor.grad is not None, f"no gradient reaches the {what}"
        assert torch.isfinite(tensor.grad).all()
        assert tensor.grad.any(), f"the gradient of the {what} is zero"
    empty, gradient = value_and_gradient(
        make, batch(), LABELS, references=batch()[:0], reference_labels=LABELS[:0]
    )
    assert empty == 0, f"an empty memory gives {empty}"
    assert not gradient.any()


def check_pair_label_values(make: Make) -> None:
    """To a pair loss labels are only equal or not; one label each is the same as a one-hot matrix."""
    if not isinstance(make(), PairLoss):
        return
    value = make()(batch(), LABELS)
    renamed = 2**40 - LABELS * 2**39
    _assert_close(make()(batch(), renamed), value, "renaming the classes changes the value")
    one_hot = torch.nn.functional.one_hot(LABELS)
    _assert_close(make()(batch(), one_hot), value, "one-hot labels give another value")
    _assert_close(make()(batch(), one_hot.bool()), value, "boolean one-hot labels give another value")


def check_pair_weights(make: Make) -> None:
    """∂L/∂S carried to the embeddings is the gradient, where the loss depends on them through S alone."""
    loss = make()
    if not isinstance(loss, PairLoss):
        return
    weights = loss.pair_weights(batch(), LABELS)
    assert weights.shape == (len(LABELS), len(LABELS))
    assert torch.isfinite(weights).all()
    if loss.on_sphere:
        z = torch.nn.functional.normalize(batch()).requires_grad_()
        towards_z = (weights + weights.T) @ z
        tangent = towards_z - z * (z * towards_z).sum(1, keepdim=True)
        _, gradient = value_and_gradient(make, z, LABELS)
        _assert_close(tangent, gradient, "pair_weights do not give the gradient", rtol=1e-3)


def check_description(name: str) -> None:
    """The docstring says what a person needs; the constructor keeps every keyword."""
    about = describe(name)
    for what in ("summary", "equation", "source", "when_to_use", "example"):
        assert getattr(about, what), f"{name}: the docstring has no {what.replace('_', ' ')}"
    loss = maker(name)()
    for keyword, default in about.defaults.items():
        assert keyword in about.arguments, f"{name}: the docstring does not explain {keyword}"
        kept = getattr(loss, keyword)
        same = kept.eq(default).all() if isinstance(kept, Tensor) else kept == default
        assert same, f"{name}: {keyword} is not kept as an attribute"


def check_search_space(name: str) -> None:
    """The published value lies where a search looks, and every corner of the space is a loss that works."""
    where, defaults = get(name).search_space, describe(name).defaults  # type: ignore[attr-defined]
    for keyword, values in where.items():
        assert keyword in defaults, f"{name}: the search space has {keyword}, which is not a keyword"
        if isinstance(values, Range):
            inside = values.low <= defaults[keyword] <= values.high
        else:
            inside = defaults[keyword] in values.values
        assert inside, f"{name}: {keyword}={defaults[keyword]} lies outside of its own search space"
    ends = [(values.points()[0], values.points()[-1]) for values in where.values()]
    for corner in itertools.product(*ends):
        check_value_is_a_finite_scalar(maker(name, **dict(zip(where, corner, strict=True))))


def _complaint(loss: Loss, embeddings: Tensor, labels: Tensor, **keywords: Any) -> str | None:
    """What the loss says against its input, if anything."""
    try:
        loss(embeddings, labels, **keywords)
    except ValueError as error:
        return str(error)
    return None


def _is_random(make: Make) -> bool:
    """Whether the value depends on what the loss draws."""
    loss = make()
    return len({loss(batch(torch.float64), LABELS).item() for _ in range(8)}) > 1


def _assert_close(
    actual: Tensor, expected: Tensor, message: str, rtol: float = 1e-5, atol: float = 1e-6
) -> None:
    torch.testing.assert_close(
        actual.detach(),
        expected.detach(),
        rtol=rtol,
        atol=atol,
        msg=lambda difference: f"{message}: {difference}",
    )


CHECKS: list[Callable[[Make], None]] = [
    check_value_is_a_finite_scalar,
    check_gradients_reach_embeddings_and_parameters,
    check_gradient_is_the_derivative,
    check_gradient_grows_with_the_loss,
    check_same_without_gradient,
    check_order_does_not_matter,
    check_float_dtypes,
    check_label_dtypes,
    check_autocast_changes_nothing,
    check_poor_batches,
    check_degenerate_embeddings,
    check_determinism,
    check_state_resumes,
    check_param_groups,
    check_bad_inputs_are_refused,
    check_validation_can_be_switched_off,
    check_values_of_samples,
    check_references,
    check_pair_label_values,
    check_pair_weights,
]
"""Every promise, in the order they are checked; each takes a function that builds a fresh loss."""
