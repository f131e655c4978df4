"""How commands take their options: shared by all of them."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", "-s", metavar="KEY=VALUE", help="Change the recipe, e.g. loss.margin=0.2; repeatable."
    ),
]
ImportOption = Annotated[
    list[str] | None,
    typer.Option(
        "--import",
        metavar="MODULE",
        help="Import a module first, which registers losses, networks or whatever else; repeatable.",
    ),
]
EmbeddingJobsOption = Annotated[
    int | None, typer.Option("--jobs", "-j", min=1, help="Processes that embed beside each other.")
]
EmbeddingRayOption = Annotated[
    str | None,
    typer.Option("--ray", help="The address of a Ray cluster to embed on, or 'local' to start one here."),
]
WeightsOption = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="The network starts from these: a file, or imagenet to download."),
]
SkipBadOption = Annotated[
    bool,
    typer.Option("--skip-bad", help="Leave out images that cannot be read, and say so in the result."),
]
RecipeArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="RECIPE|FOLDER|TABLE|NAME",
        help="A recipe (.toml), a folder of images, a table (.csv) of images and labels or of pairs, or the "
        "name of a data set; without one, the embedded data set glyphs is learnt.",
    ),
]


class Command(TyperCommand):
    """A command whose options do not swallow each other: ``--output --show-recipe`` is a mistake."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Refuse an option whose value is another option."""
        options = {
            name: parameter
            for parameter in self.params
            if parameter.param_type_name == "option"
            for name in (*parameter.opts, *parameter.secondary_opts)
        }
        for name, value in pairwise(args):
            if name == "--":
                break
            option = options.get(name)
            takes_value = option is not None and not getattr(option, "is_flag", False)
            if takes_value and (value.startswith("--") or value in options):
                raise ValueError(f"{name} needs a value, and {value[:80]} is an option: say {name}=VALUE")
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            option = getattr(error, "option_name", None)
            if type(error).__name__ != "NoSuchOption" or option is None or "--set" not in options:
                raise
            key = _key_of(option)
            if key is None:
                raise
            raise ValueError(
                f"No such option: {option}; it is a key of the recipe: --set {key}=VALUE"
            ) from None


def _key_of(option: str) -> str | None:
    """The key of a recipe that somebody means by ``--batch-size`` or ``--loss``."""
    from nearkin.recipe.objects import key_of  # noqa: PLC0415  (which takes long to import)

    return key_of(option.lstrip("-").replace("-", "_"))
