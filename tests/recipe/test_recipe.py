from __future__ import annotations

import pytest

from nearkin.recipe import Recipe, RecipeError, override


def parse(*settings: str) -> Recipe:
    return Recipe.parse(override({}, settings))


def test_toml_round_trip(tmp_path):
    recipe = parse("loss.name=contrastive", "loss.margin=0.3", "network.name=mlp", "network.hidden=[32, 16]")
    file = tmp_path / "recipe.toml"
    file.write_text(recipe.to_toml())
    assert Recipe.read(file) == recipe
    assert Recipe.read(file).loss.keywords == {"margin": 0.3}


def test_settings_override_the_file(tmp_path):
    file = tmp_path / "recipe.toml"
    file.write_text('seed = 3\n[loss]\nname = "contrastive"\nmargin = 0.3\n')
    recipe = Recipe.read(file, ["loss.margin=0.4", "training.epochs=7"])
    assert (recipe.seed, recipe.loss.keywords, recipe.training.epochs) == (3, {"margin": 0.4}, 7)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("loss.name=proxy_ancor", "unknown loss 'proxy_ancor': did you mean proxy_anchor?"),
        ("loss.margn=0.2", "loss 'proxy_anchor' has no keyword 'margn': did you mean margin?"),
        ("loss.margin=abc", "margin must be of type float, not 'abc'"),
        ("loss.margin=true", "margin must be of type float, not True"),
        ("loss.margin=-0.1", "margin=-0.1"),
        ("los.margin=1", "unknown key los: did you mean loss?"),
        ("training.epoch=3", "unknown key training.epoch: did you mean epochs?"),
        ("training.epochs=ten", "training.epochs: .*not 'ten'"),
        ("training.epochs=0", "training.epochs: .*greater than or equal to 1, not 0"),
        ("optimizer.lr=-1", "optimizer.lr: .*not -1"),
        ("optimizer.name=adamm", "unknown optimizer 'adamm': did you mean adam"),
        ("network.name=resnet_fifty", "unknown network 'resnet_fifty'"),
        ("network.pooling=avgg", "unknown pooling 'avgg': did you mean avg?"),
        ("network.width=1.5", "width must be of type int, not 1.5"),
        ("data.name=glyph", "unknown data set 'glyph': did you mean glyphs?"),
        ("sampler.images_per_clas=3", "has no keyword 'images_per_clas': did you mean images_per_class?"),
        ("loss=3", "loss: "),
        ("evaluation.recall_at=[]", "evaluation.recall_at"),
    ],
)
def test_a_mistake_is_one_line_that_names_it(setting, message):
    settings = [setting] if "clas=" not in setting else ["loss.name=contrastive", setting]
    with pytest.raises(RecipeError, match=message) as caught:
        parse(*settings)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("setting", ["loss.margin", "=3", "loss..margin=1", "seed.x=1"])
def test_a_malformed_setting_is_an_error(setting):
    with pytest.raises(RecipeError):
        Recipe.parse(override({"seed": 0}, [setting]))


def test_whole_numbers_do_for_floats():
    assert parse("loss.margin=1").loss.keywords == {"margin": 1}


def test_the_sampler_follows_the_loss_unless_it_is_named():
    assert parse("loss.name=proxy_anchor").resolved().sampler.name == "random"
    assert parse("loss.name=contrastive").resolved().sampler.name == "balanced"
    assert parse("loss.name=contrastive", "sampler.name=random").resolved().sampler.name == "random"


@pytest.mark.parametrize(("text", "message"), [("seed = = 1", "is not TOML"), (None, "there is no recipe")])
def test_an_unreadable_file_is_named(text, message, tmp_path):
    file = tmp_path / "r.toml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(RecipeError, match=message) as caught:
        Recipe.read(file)
    assert "r.toml" in str(caught.value)


def test_losses_over_proxies_take_a_memory_too_and_its_mistakes_are_named():
    recipe = Recipe.parse({"loss": {"name": "proxy_anchor", "memory": {"size": 10}}})
    assert recipe.loss.modifiers[0].keywords["size"] == 10
    with pytest.raises(
        RecipeError, match=r"\[loss\.memory\] modifier 'memory' has no keyword 'sizes': did you mean size\?"
    ):
        Recipe.parse({"loss": {"name": "contrastive", "memory": {"sizes": 10, "size": 10}}})
