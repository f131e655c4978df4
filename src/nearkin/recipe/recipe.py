"""Everything about a run in one typed object: TOML on disk, ``--set loss.margin=0.2`` on the command line.

What a recipe does not say stays unsaid until it is used: :attr:`Recipe.said` holds what was said,
:meth:`Recipe.complete` every setting with the chosen values and defaults, :meth:`Recipe.to_toml` both, the
unsaid ones as comments.
"""

from __future__ import annotations

import copy
import os
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import PrivateAttr, ValidationError, model_validator

from nearkin import losses
from nearkin.data.caption_tables import lists_captions
from nearkin.data.pair_tables import lists_pairs
from nearkin.losses.base import registry as loss_registry
from nearkin.recipe.choices import PYTHON, Choice, Section
from nearkin.recipe.errors import RecipeError, first_mistake
from nearkin.recipe.plugins import import_plugins
from nearkin.recipe.sections import (
    SECTIONS,
    DataRecipe,
    EvaluationRecipe,
    LossRecipe,
    NetworkRecipe,
    OptimizerRecipe,
    ProtocolRecipe,
    SamplerRecipe,
    ScheduleRecipe,
    Seed,
    TrainingRecipe,
    UnlabelledRecipe,
)
from nearkin.recipe.terms import Terms, dotted, merged, terms_of
from nearkin.recipe.upgrading import upgraded
from nearkin.registry import shortened

if TYPE_CHECKING:
    from nearkin.observer import Observer
    from nearkin.training import Task

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_SECOND_SETTING = re.compile(r"\s\w+(\.\w+)+=")
# By a file that no other folder of images has.
_PUBLISHED_LAYOUTS = {
    "image_class_labels.txt": "cub200",
    "Ebay_train.txt": "sop",
    "Eval/list_eval_partition.txt": "inshop",
    "list_eval_partition.txt": "inshop",
    "cars_annos.mat": "cars196",
}
DEFAULT_BATCH_SIZE = 180
DEFAULT_EMBEDDING_DIM = 64


class Recipe(Section):
    """Everything about a run.

    Attributes:
        terms: Which values stand where the recipe says nothing. ``equal``: the defaults
            below, the same for every loss but for its own hyperparameters. ``thesis``: those of the thesis's
            text, for its experiments. ``thesis_code``: the same, and the habits of its public code where the
            text is silent. ``published``: those of the loss's own paper and code, batch norm, pooling, crop
            and all; such runs do not compare losses. :meth:`origins` says where each value comes from.
        imports: Modules to import first, which register losses, networks or whatever else.
        seed: The seed of everything random: weights, batches, transforms, mining, the validation split.
    """

    terms: Literal["equal", "thesis", "thesis_code", "published"] = "equal"
    imports: tuple[str, ...] = ()
    seed: Seed = 0
    data: DataRecipe = DataRecipe()
    network: NetworkRecipe = NetworkRecipe()
    loss: LossRecipe = LossRecipe()
    sampler: SamplerRecipe = SamplerRecipe()
    unlabelled: UnlabelledRecipe = UnlabelledRecipe()
    optimizer: OptimizerRecipe = OptimizerRecipe()
    schedule: ScheduleRecipe = ScheduleRecipe()
    training: TrainingRecipe = TrainingRecipe()
    evaluation: EvaluationRecipe = EvaluationRecipe()
    protocol: ProtocolRecipe = ProtocolRecipe()

    _said: dict[str, Any] = PrivateAttr(default_factory=dict)
    _objects: dict[str, Any] = PrivateAttr(default_factory=dict)

    def model_post_init(self, context: Any, /) -> None:
        """Note what was said, where a recipe is made directly and not by :meth:`parse`."""
        super().model_post_init(context)
        self._said = _plain(self.model_dump(mode="json", exclude_unset=True))

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, values: Any) -> Any:
        return cls._lay_over_terms(values) if isinstance(values, Mapping) else values

    @classmethod
    def _lay_over_terms(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """What the terms say, and over it what the recipe says."""
        terms = _terms_under(values).values
        if not terms:
            return values
        named = {
            key: {"name": one} for key, one in values.items() if key in SECTIONS and isinstance(one, str)
        }
        said = {**values, **named}
        return merged({key: _for_what_is_named(key, one, said.get(key)) for key, one in terms.items()}, said)

    @classmethod
    def parse(
        cls,
        values: Mapping[str, Any],
        *,
        source: str = "recipe",
        objects: Mapping[str, Any] | None = None,
    ) -> Recipe:
        """Check plain values; every mistake is a :class:`RecipeError` of one line.

        Args:
            values: What is said, by table and key.
            source: What an error calls it.
            objects: Objects for the choices whose names begin with ``python:``, by key, such as ``loss``.

        >>> Recipe.parse({"seeds": 1})
        Traceback (most recent call last):
        nearkin.recipe.errors.RecipeError: recipe: unknown key seeds: did you mean seed?
        """
        said = {
            key: value
            for key, value in upgraded(_plain(values)).items()
            if value != {} or key not in SECTIONS
        }
        imports = said.get("imports", ())
        try:
            import_plugins(imports if isinstance(imports, list | tuple) else [imports])
            recipe = cls.model_validate(said)
        except ValidationError as error:
            raise RecipeError(f"{source}: {first_mistake(error, cls)}") from None
        except RecipeError as error:
            raise RecipeError(f"{source}: {error}") from None
        except (TypeError, OverflowError, RecursionError) as error:
            raise RecipeError(f"{source}: {shortened(str(error))[1:-1]}") from None
        recipe._said = said
        recipe._objects = dict(objects or {})
        try:
            if recipe.choices():
                recipe.resolved()  # keywords of what is chosen are checked as well
        except RecipeError as error:
            raise RecipeError(f"{source}: {str(error).removeprefix('recipe: ')}") from None
        except ValueError as error:
            raise RecipeError(f"{source}: {error}") from None
        return recipe

    @classmethod
    def read(cls, path: str | os.PathLike[str], overrides: Iterable[str] = ()) -> Recipe:
        """Read a TOML file and apply ``key=value`` overrides."""
        return cls.parse(override(read_toml(path, kind="recipe"), overrides), source=str(path))

    @property
    def said(self) -> dict[str, Any]:
        """What was said, and nothing else, in plain values."""
        return copy.deepcopy(self._said)

    @property
    def objects(self) -> dict[str, Any]:
        """Objects that were given in Python, by key."""
        return dict(self._objects)

    def changed(self, changes: Mapping[str, Any]) -> Recipe:
        """This recipe with other values under dotted keys; ``None`` takes a value away.

        What was not said before is still not said: another loss gets its own sampler.

        >>> Recipe.parse({}).changed({"optimizer.lr": 0.1}).optimizer.lr
        0.1
        """
        values = self.said
        for key, value in changes.items():
            *path, last = key.split(".")
            table = values
            for part in path:
                below = table.setdefault(part, {})
                if isinstance(below, str):  # a choice written as its name alone
                    below = table[part] = {"name": below}
                if not isinstance(below, dict):
                    raise RecipeError(f"unknown key {key}: {part} is a value, not a table")
                table = below
            if value is None:
                table.pop(last, None)
            else:
                table[last] = value
        return Recipe.parse(values, objects=self._objects)

    def choices(self) -> dict[str, tuple[Any, str]]:
        """Values that are chosen because the recipe leaves them open, each with the reason.

        >>> Recipe.parse({"loss": {"name": "triplet"}}).choices()["sampler.name"]
        ('balanced', 'triplet compares the samples of a batch, which needs several of a class')
        """
        found: dict[str, tuple[Any, str]] = {}
        if self.data.name is None:
            found["data.name"] = data_name(self.data.root)
        if self.sampler.name is None:
            found["sampler.name"] = self._sampler_name()
        if self.network.embedding_dim is None and not self.network.is_own_module:
            found["network.embedding_dim"] = DEFAULT_EMBEDDING_DIM, "default"
        if self.sampler.batch_size is None:
            found["sampler.batch_size"] = DEFAULT_BATCH_SIZE, "default"
        return found

    def _sampler_name(self) -> tuple[str, str]:
        name = self.loss.name
        if name.startswith(PYTHON):
            loss = self._objects.get("loss", len)  # where it was not passed again: taken to compare
        else:
            loss = name if name in loss_registry else LossRecipe.maker(name)
        if losses.compares_samples(loss, self.loss.keywords):
            return "balanced", f"{name} compares the samples of a batch, which needs several of a class"
        return "random", f"{name} compares samples with proxies"

    def resolved(self) -> Recipe:
        """This recipe with every choice made and said."""
        return self.changed({key: value for key, (value, _) in self.choices().items()})

    def complete(self) -> dict[str, Any]:
        """Every setting in plain values: said, chosen or by default, keywords of the named entries included.

        Two runs whose complete settings are equal (but for keys that change no number) are the same run.
        """
        whole = self.resolved()
        plain = whole.model_dump(mode="json")
        if whole.unlabelled.name is None:
            del plain["unlabelled"]  # it concerns nothing, and runs that began before it was there go on
        for section in type(whole).model_fields:
            value = getattr(whole, section)
            if isinstance(value, Choice) and section in plain:
                _add_defaults(plain[section], value)
        _add_defaults(plain["data"]["transform"], whole.data.transform)
        for modifier in whole.loss.modifiers:
            _add_defaults(plain["loss"][modifier.name], modifier)
        whole_plain: dict[str, Any] = _plain(plain)
        return whole_plain

    def origins(self) -> dict[str, str]:
        """Where every setting comes from, by dotted key, under terms other than equal ones.

        ``said``: by the recipe itself; ``ours``: a default of the library that the terms are silent about;
        else what the terms say: a table, a section or an equation of the thesis, its public code, a paper.

        >>> birds = {"data": {"name": "cub200", "root": "birds"}, "network": {"name": "resnet50"}}
        >>> recipe = Recipe.parse({"terms": "thesis", "loss": {"name": "triplet"}, "seed": 3, **birds})
        >>> [recipe.origins()[key] for key in ("optimizer.lr", "loss.mining", "seed")]
        ['Table 3', 'Table 5', 'said']
        """
        if self.terms == "equal":
            return {}
        terms = _terms_under(self._said)
        leaves = set(dotted(self._said))
        said = leaves | {f"{key}.name" for key in leaves}  # a choice may be written as its name alone
        keys = [key for key in dotted(self.complete()) if key not in {"terms", "imports"}]
        known = {key: "said" if key in said else terms.origins.get(key, "ours: default") for key in keys}
        readings = {
            key: origin for key, origin in terms.origins.items() if key not in set(dotted(terms.values))
        }
        return known | readings

    def build(
        self,
        observer: Observer | None = None,
        *,
        data: Any = None,
        remembered: Mapping[str, tuple[Any, str]] | None = None,
    ) -> Task:
        """The objects that this recipe names.

        Args:
            observer: Hears what is being done: opening data, loading weights.
            data: A data set that is open already.
            remembered: What was chosen when the run began, which is not chosen anew:
                :meth:`nearkin.Run.chosen_before`.
        """
        from nearkin.recipe.building import build_task  # noqa: PLC0415  (imports torch's slow parts)

        return build_task(self, observer, data=data, remembered=remembered)

    def to_toml(self) -> str:
        """The recipe as TOML: what was said as it is, and everything else as comments with its origin."""
        from nearkin.recipe.writing import write_toml  # noqa: PLC0415

        return write_toml(self)


def _terms_under(values: Mapping[str, Any]) -> Terms:
    """The terms that plain values ask for."""
    kind = values.get("terms", "equal")
    if not isinstance(kind, str):  # whatever it is: a mistake, to be told by whoever checks it
        return Terms()
    loss, network = (
        _name_of(values.get(key, {}), model)
        for key, model in (("loss", LossRecipe), ("network", NetworkRecipe))
    )
    table = values.get("data", {})
    root = table.get("root") if isinstance(table, Mapping) else None
    data = _name_of(table, DataRecipe) or data_name(root if isinstance(root, str) else None)[0]
    return terms_of(kind, loss=str(loss), data=data, network=str(network))


def _for_what_is_named(section: str, terms: Any, said: Any) -> Any:
    """A table of the terms without the keywords of what it names, where the recipe names something else."""
    model = SECTIONS.get(section)
    if model is None or not issubclass(model, Choice) or "name" not in terms:
        return terms
    if not isinstance(said, Mapping) or said.get("name", terms.get("name")) == terms.get("name"):
        return terms
    return {key: value for key, value in terms.items() if key in model.model_fields}


def data_name(root: str | None) -> tuple[str, str]:
    """Which data set a folder or file is, where nobody says, and why."""
    if root is None:
        return "glyphs", "the embedded data set, since no data is given"
    if Path(root).suffix.lower() in {".csv", ".tsv"}:
        if lists_captions(root):
            return "captions", "data.root is a table of images and texts"
        if lists_pairs(root):
            return "pairs", "data.root is a table of pairs"
        return "csv", "data.root is a table"
    for file, name in _PUBLISHED_LAYOUTS.items():
        if (Path(root) / file).is_file():
            return name, f"data.root holds {file}, as {name} does"
    return "folder", "data.root is given without a name"


def _add_defaults(plain: dict[str, Any], choice: Choice) -> None:
    """Write the defaults of a choice's keywords out, where they are plain values."""
    if choice.name is None or choice.name.startswith(PYTHON):
        return
    for key, value in type(choice).defaults_of(choice.name).items():
        if key not in plain and isinstance(value, str | int | float | bool | tuple | list | type(None)):
            plain[key] = list(value) if isinstance(value, tuple) else value


def _plain(values: Any) -> Any:
    """Mappings and lists without ``None`` entries, copied."""
    if isinstance(values, Mapping):
        return {str(key): _plain(value) for key, value in values.items() if value is not None}
    if isinstance(values, list | tuple):
        return [_plain(value) for value in values]
    return os.fspath(values) if isinstance(values, os.PathLike) else values


def read_toml(path: str | os.PathLike[str], *, kind: str) -> dict[str, Any]:
    """The plain values of a TOML file; ``kind`` is what an error calls it."""
    path = Path(path)
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RecipeError(f"there is no {kind} {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"cannot read the {kind} {path}: {error}") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise RecipeError(f"{path} is not TOML: {error}") from None


def _name_of(table: Any, section: type[Choice]) -> str | None:
    default: str | None = section.model_fields["name"].default
    if isinstance(table, str):
        return table
    return table.get("name", default) if isinstance(table, Mapping) else default


def override(values: Mapping[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """Plain values with ``table.key=value`` settings put over them; values are TOML, or else text.

    >>> override({"loss": {"margin": 0.1}}, ["loss.margin=0.2", "data.name=glyphs"])
    {'loss': {'margin': 0.2}, 'data': {'name': 'glyphs'}}
    """
    changed = copy.deepcopy(dict(values))
    for setting in overrides:
        key, equals, text = setting.partition("=")
        path = key.strip().split(".")
        if not equals or not all(path):
            raise RecipeError(
                f"--set {shortened(setting)[1:-1]}: write table.key=value, such as loss.margin=0.2"
            )
        table = changed
        for part in path[:-1]:
            below = table.setdefault(part, {})
            if isinstance(below, str):
                below = table[part] = {"name": below}
            if not isinstance(below, dict):
                raise RecipeError(f"--set {shortened(setting)[1:-1]}: {part} is a value, not a table")
            table = below
        table[path[-1]] = _value(text.strip())
    return changed


def _value(text: str) -> Any:
    try:
        found = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):  # no TOML, or a number of thousands of digits
        if _SECOND_SETTING.search(text):
            raise RecipeError(
                f"--set …={shortened(text)[1:-1]}: one setting at a time; say --set once more"
            ) from None
        return text
    return found["value"] if list(found) == ["value"] else text
