from __future__ import annotations

import copy
from math import exp, log

import pytest
import torch
from torch.nn.functional import normalize

from nearkin import losses
from nearkin.losses import CrossBatchMemory, LanguageGuidance

CLASSES, DIM, TEXT_DIM = 4, 5, 7
NAMES = [f"bird {number}" for number in range(CLASSES)]


def batch(size=9, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    embeddings = torch.randn(size, DIM, generator=generator, dtype=torch.float64).to(dtype)
    return embeddings.requires_grad_(), torch.randint(0, CLASSES, (size,), generator=generator)


def meanings(*shape, dtype=torch.float64):
    return torch.randn(
        *(shape or (CLASSES, TEXT_DIM)), generator=torch.Generator().manual_seed(1), dtype=dtype
    )


def inner(name, **keywords):
    return losses.build(name, num_classes=CLASSES, embedding_dim=DIM, **keywords)


def guided(name="contrastive", weight=2.0, texts=None, **keywords):
    texts = meanings() if texts is None else texts
    return LanguageGuidance(inner(name), NAMES, texts, weight=weight, **keywords)


def cosine(a, b):
    return (a @ b) / (a.norm() * b.norm())


def naive_guidance(x, y, texts_by_class, shift):
    """The equation, one number at a time; ``texts_by_class[c]`` lists the embeddings of the names of c."""
    y = y.tolist()
    total = x.sum() * 0
    for i in range(len(y)):
        image, language = [], []
        for j in range(len(y)):
            if y[i] == y[j]:
                image.append(torch.tensor(1 + shift, dtype=x.dtype))
                language.append(1 + shift)
                continue
            pairs = list(zip(texts_by_class[y[i]], texts_by_class[y[j]], strict=True))
            image.append(cosine(x[i], x[j]))
            language.append(sum(float(cosine(a, b)) for a, b in pairs) / len(pairs) + shift)
        image_sum = sum(s.exp() for s in image)
        language_sum = sum(exp(s) for s in language)
        for s, t in zip(image, language, strict=True):
            p = s.exp() / image_sum
            total = total + p * (p.log() - log(exp(t) / language_sum))
    return total / len(y)


@pytest.mark.parametrize("shift", [0.0, 1.0, 2.5])
@pytest.mark.parametrize("ranks", [1, 3])
def test_value_and_gradient_are_those_of_plain_loops(shift, ranks):
    x, y = batch()
    texts = meanings(CLASSES, ranks, TEXT_DIM)
    names = [[f"{name}, {rank}" for rank in range(ranks)] for name in NAMES]
    loss = LanguageGuidance(inner("contrastive"), names, texts, weight=3.0, shift=shift)
    value = loss(x, y)
    (gradient,) = torch.autograd.grad(value, x)

    plain = x.detach().clone().requires_grad_()
    expected = inner("contrastive")(plain, y) + 3.0 * naive_guidance(plain, y, texts, shift)
    (expected_gradient,) = torch.autograd.grad(expected, plain)
    torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-10, atol=1e-12)


def literal_guidance(x, y, texts):
    """The survey's (29) as it is printed, one number at a time: no pair is replaced."""
    total = x.sum() * 0
    for i in range(len(y)):
        image = [cosine(x[i], x[j]) for j in range(len(y))]
        language = [float(cosine(texts[y[i]], texts[y[j]])) + 1 for j in range(len(y))]
        image_sum, language_sum = sum(s.exp() for s in image), sum(exp(s) for s in language)
        for s, t in zip(image, language, strict=True):
            p = s.exp() / image_sum
            total = total + p * (p / (exp(t) / language_sum)).log()
    return total / len(y)


def test_the_surveys_form_is_29_literally():
    x, y = batch()
    loss = guided(weight=3.0, form="survey")
    value = loss(x, y)
    (gradient,) = torch.autograd.grad(value, x)
    plain = x.detach().clone().requires_grad_()
    expected = inner("contrastive")(plain, y) + 3.0 * literal_guidance(plain, y, meanings())
    (expected_gradient,) = torch.autograd.grad(expected, plain)
    torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-10, atol=1e-12)
    assert torch.autograd.gradcheck(lambda x: loss.guidance(x, y), x)


def test_the_shift_has_no_effect_in_the_surveys_form():
    x, y = batch()
    without, with_it = (guided(form="survey", shift=shift).guidance(x, y) for shift in (0.0, 5.0))
    torch.testing.assert_close(without, with_it, rtol=1e-13, atol=1e-13)
    assert guided(shift=0.0).guidance(x, y) != guided(shift=5.0).guidance(x, y)


def test_gradcheck():
    x, y = batch(size=6)
    assert torch.autograd.gradcheck(lambda x: guided().guidance(x, y), x)


def test_ranks_are_matched_with_each_other_and_their_similarities_averaged():
    texts = meanings(CLASSES, 5, TEXT_DIM)
    names = [[f"{name} {rank}" for rank in range(5)] for name in NAMES]
    loss = LanguageGuidance(inner("contrastive"), names, texts)
    units = normalize(texts, dim=-1)
    by_rank = [units[:, rank] @ units[:, rank].T for rank in range(5)]
    torch.testing.assert_close(loss.class_similarities, torch.stack(by_rank).mean(dim=0))


def test_two_images_of_a_class_neither_pull_nor_push_each_other():
    x, y = batch()
    same = y.unsqueeze(1) == y
    loss = guided()
    units = normalize(x.detach(), dim=1).requires_grad_()
    S = units @ units.T

    def from_similarities(S):
        shifted = (loss.class_similarities[y][:, y] + 1).masked_fill(same, 2.0)
        p, q = S.masked_fill(same, 2.0).log_softmax(1), shifted.log_softmax(1)
        return torch.nn.functional.kl_div(q, p, reduction="batchmean", log_target=True)

    torch.testing.assert_close(loss.guidance(x, y), from_similarities(S))
    (weights,) = torch.autograd.grad(from_similarities(S), S)
    assert weights[same].eq(0).all()
    assert weights[~same].ne(0).any()


def test_pictures_that_agree_with_language_up_to_the_shift_have_no_divergence():
    texts = torch.eye(CLASSES, dtype=torch.float64)
    loss = LanguageGuidance(inner("contrastive"), NAMES, texts, shift=0.0)
    labels = torch.tensor([0, 1, 1, 3])
    x = texts[labels].clone().requires_grad_()
    value = loss.guidance(x, labels)
    value.backward()
    assert abs(value.item()) < 1e-15
    assert x.grad.abs().max() < 1e-15


def test_pictures_move_towards_what_language_finds_similar():
    texts = torch.tensor([[1.0, 0.0], [0.95, 0.3], [-1.0, 0.1], [0.0, -1.0]])
    labels = torch.arange(CLASSES)
    x = torch.eye(CLASSES).requires_grad_()
    loss = guided(texts=texts)
    optimizer = torch.optim.SGD([x], lr=1.0)
    start = loss.guidance(x, labels).item()
    for _ in range(200):
        optimizer.zero_grad()
        loss.guidance(x, labels).backward()
        optimizer.step()
    S = normalize(x.detach(), dim=1)
    S = S @ S.T
    assert loss.guidance(x, labels) < 0.7 * start
    assert S[0, 1] > S[0, 3] > S[0, 2]


@pytest.mark.parametrize("name", losses.names())
def test_weight_zero_is_the_inner_loss_bit_for_bit(name):
    x, y = batch(dtype=torch.float32)
    loss, plain = guided(name, weight=0.0), inner(name)
    value = loss(x, y)
    value.backward()
    alone = x.detach().clone().requires_grad_()
    expected = plain(alone, y)
    expected.backward()
    assert torch.equal(value, expected)
    assert torch.equal(x.grad, alone.grad)
    for own, other in zip(loss.parameters(), plain.parameters(), strict=True):
        assert torch.equal(own.grad, other.grad)


@pytest.mark.parametrize("name", losses.names())
def test_any_loss_gets_the_same_guidance_on_top(name):
    x, y = batch()
    loss, plain = guided(name, weight=3.0), inner(name)
    torch.testing.assert_close(loss(x, y), plain(x, y) + 3.0 * loss.guidance(x, y))


def test_no_gradient_reaches_the_language_side():
    x, y = batch()
    texts = meanings().requires_grad_()
    model = torch.nn.Linear(3, TEXT_DIM)
    by_tensor = LanguageGuidance(inner("contrastive"), NAMES, texts)
    by_model = LanguageGuidance(
        inner("contrastive"), NAMES, lambda prompts: model(torch.rand(len(prompts), 3))
    )
    for loss in (by_tensor, by_model):
        (loss(x, y) + loss(x, y)).backward()
        assert x.grad is not None
        assert not loss.class_units.requires_grad
        assert list(loss.parameters()) == []
    assert texts.grad is None
    assert model.weight.grad is None


def test_every_name_is_encoded_once_inside_its_prompt():
    asked = []

    def encoder(prompts):
        asked.append(prompts)
        return meanings(len(prompts), TEXT_DIM)

    names = [["wren", "tit"], ["crow", "wren"], ["{}", "crow"]]
    loss = LanguageGuidance(inner("contrastive"), names, encoder, prompt="a drawing of a {}, a bird")
    drawn = [f"a drawing of a {name}, a bird" for name in ("wren", "tit", "crow", "{}")]
    assert asked == [drawn]
    texts = meanings(4, TEXT_DIM)[torch.tensor([[0, 1], [2, 0], [3, 2]])]
    expected = LanguageGuidance(inner("contrastive"), names, texts)
    assert torch.equal(loss.class_units, expected.class_units)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(dtype):
    x, y = batch(dtype=dtype)
    loss = guided("multi_similarity")
    value = loss(x, y)
    value.backward()
    exact = x.detach().float().requires_grad_()
    expected = loss(exact, y)
    expected.backward()
    assert value.dtype == torch.float32
    assert torch.equal(value, expected)
    assert torch.equal(x.grad, exact.grad.to(dtype))


def test_autocast_changes_nothing():
    x, y = batch(dtype=torch.float32)
    loss = guided("multi_similarity")
    expected = loss.guidance(x, y)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = loss.guidance(x, y)
    assert torch.equal(value, expected)


@pytest.mark.parametrize("labels", [[2, 2, 2, 2], [1], []])
def test_a_batch_without_two_classes_gives_an_exact_zero_that_goes_back(labels):
    x = torch.randn(len(labels), DIM, requires_grad=True, generator=torch.Generator().manual_seed(0))
    value = guided().guidance(x, torch.tensor(labels, dtype=torch.long))
    value.backward()
    assert value == 0
    assert torch.equal(x.grad, torch.zeros_like(x))


def test_zero_vectors_and_duplicates_stay_finite():
    x = torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 0.0]], requires_grad=True)
    guided().guidance(x, torch.tensor([0, 1, 2])).backward()
    assert torch.isfinite(x.grad).all()


def test_learnable_parameters_are_those_of_the_inner_loss():
    loss = guided("proxy_anchor")
    assert loss.proxies is loss.loss.proxies
    (group,) = loss.param_groups(lr=0.1)
    assert group["params"][0] is loss.loss.proxies
    assert guided("margin").beta.requires_grad
    with pytest.raises(AttributeError, match="proxies"):
        _ = guided("contrastive").proxies


def test_references_and_ids_go_to_the_inner_loss():
    x, y = batch()
    others, their_labels = batch(seed=5)
    loss = guided("contrastive", weight=3.0)
    expected = loss.loss(x, y, references=others, reference_labels=their_labels) + 3.0 * loss.guidance(x, y)
    torch.testing.assert_close(loss(x, y, references=others, reference_labels=their_labels), expected)

    memory = LanguageGuidance(CrossBatchMemory(inner("contrastive"), size=20), NAMES, meanings(), weight=3.0)
    plain = CrossBatchMemory(inner("contrastive"), size=20)
    for seed in range(3):
        x, y = batch(seed=seed)
        ids = torch.arange(len(y)) + 4 * seed
        torch.testing.assert_close(memory(x, y, ids=ids), plain(x, y, ids=ids) + 3.0 * memory.guidance(x, y))


def test_a_guided_loss_goes_around_a_memory_and_not_into_it():
    with pytest.raises(ValueError, match="LanguageGuidance cannot use a memory"):
        CrossBatchMemory(guided(), size=10)


def test_the_state_brings_the_language_along():
    x, y = batch()
    loss = guided("proxy_anchor")
    state = copy.deepcopy(loss.state_dict())
    assert set(state) == {"class_units", "loss.proxies"}
    other = LanguageGuidance(inner("proxy_anchor"), NAMES, meanings().flip(0), weight=2.0)
    assert other(x, y) != loss(x, y)
    other.load_state_dict(state)
    assert torch.equal(other(x, y), loss(x, y))


def test_wrong_arguments_are_named():
    contrastive = inner("contrastive")
    for names, encoder, keywords, message in [
        (NAMES, meanings(), {"weight": -1.0}, "weight=-1.0"),
        (NAMES, meanings(), {"shift": -1.0}, "shift=-1.0"),
        ([], meanings(), {}, "class_names is empty"),
        ([["a", "b"], ["c"]], meanings(), {}, "class 1 has 1 names and class 0 has 2"),
        (NAMES[:3], meanings(), {}, r"embeddings of shape \(4, 7\) for 3 classes with 1 names each"),
        (NAMES, lambda prompts: meanings(3, 2), {}, r"the encoder made \(3, 2\) of 4 texts"),
        (NAMES, len, {"prompt": "a photo"}, "prompt='a photo' has no place for the class name"),
        (NAMES, meanings() / 0, {}, "must be finite"),
        (NAMES, meanings(), {"form": "thesis"}, "form='thesis' must be one of: paper, survey"),
    ]:
        with pytest.raises(ValueError, match=message):
            LanguageGuidance(contrastive, names, encoder, **keywords)
    x, _ = batch(size=2)
    with pytest.raises(ValueError, match="label 4 is out of range for num_classes=4"):
        guided()(x, torch.tensor([0, 4]))
    with pytest.raises(ValueError, match="contain NaN"):
        guided().guidance(x * float("nan"), torch.tensor([0, 1]))
    with pytest.raises(ValueError, match=r"labels must have shape \(B,\)"):
        guided()(x, torch.ones(2, 3, dtype=torch.long))


def test_printed_form():
    assert repr(guided()).startswith(
        "LanguageGuidance(\n  weight=2.0, shift=1.0, prompt='a photo of a {}', form='paper', classes=4"
    )


def test_guidance_alone_refuses_what_the_loss_refuses():
    embeddings, labels = batch()
    with pytest.raises(ValueError, match="weights"):
        guided().guidance(embeddings, labels, weights=torch.full((len(labels),), -1.0))
    with pytest.raises((ValueError, TypeError), match="float"):
        guided()(embeddings.detach().long(), labels)
    with pytest.raises((ValueError, TypeError), match="float"):
        guided().guidance(embeddings.detach().long(), labels)
