"""What a loss says about itself, for the command line and the documentation."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from typing import Any

from torch import nn

from nearkin.losses.base import Loss, get, names
from nearkin.losses.wrapping import WrappedLoss

_NOT_HYPERPARAMETERS = ("num_classes", "embedding_dim", "generator")
_SECTION = re.compile(r"^(Equation|Source|When to use|Relations to other losses|Args|Attributes|Example):$")


@dataclass(frozen=True)
class Description:
    """One loss in words, read from its class's docstring and signature.

    Attributes:
        name: as in ``build(name)``.
        class_name: as exported from ``nearkin.losses``.
        summary: one line.
        equation: one or more lines of plain text.
        source: authors, title, venue, year.
        when_to_use: a paragraph.
        relations: a paragraph on how it relates to other losses; may be empty.
        defaults: hyperparameter → default value, in the order of the signature.
        arguments: every constructor keyword → what it means.
        example: a doctest.
        needs_classes: whether it takes ``num_classes`` and ``embedding_dim``.
    """

    name: str
    class_name: str
    summary: str
    equation: str
    source: str
    when_to_use: str
    relations: str
    defaults: dict[str, Any]
    arguments: dict[str, str]
    example: str
    needs_classes: bool


def describe(loss: str | Loss) -> Description:
    """Everything a person needs to know to choose and call a loss.

    Args:
        loss: a registered name, or a loss: of one that wraps another, what is known about that one.

    >>> about = describe("proxy_anchor")
    >>> about.class_name, about.defaults
    ('ProxyAnchor', {'alpha': 32.0, 'margin': 0.1})
    >>> about.source
    'Kim, Kim, Cho, Kwak. Proxy Anchor Loss for Deep Metric Learning. CVPR 2020. arXiv:2003.13911.'
    """
    name, made = (loss, get(loss)) if isinstance(loss, str) else _name_and_maker(loss)
    sections = _sections(inspect.getdoc(made) or "")
    return Description(
        name=name,
        class_name=getattr(made, "__name__", name),
        summary=sections[""].split("\n\n")[0].replace("\n", " "),
        equation=sections.get("Equation", ""),
        source=_one_line(sections.get("Source", "")),
        when_to_use=_one_line(sections.get("When to use", "")),
        relations=_one_line(sections.get("Relations to other losses", "")),
        defaults={
            keyword: parameter.default
            for keyword, parameter in inspect.signature(made).parameters.items()
            if keyword not in _NOT_HYPERPARAMETERS and parameter.default is not inspect.Parameter.empty
        },
        arguments=_arguments(sections.get("Args", "")),
        example=sections.get("Example", ""),
        needs_classes=inspect.isclass(made) and issubclass(made, Loss) and made.needs_classes,
    )


def _name_and_maker(loss: Loss) -> tuple[str, Any]:
    """The registered name of a loss, or where it comes from, and what its docstring belongs to."""
    if isinstance(loss, WrappedLoss):
        return loss.name, type(loss.loss) if isinstance(loss.loss, nn.Module) else loss.loss
    made = type(loss)
    return next(
        (name for name in names() if get(name) is made), f"{made.__module__}:{made.__qualname__}"
    ), made


def _sections(docstring: str) -> dict[str, str]:
    """Title → body without its indentation; what comes before the first title is under the empty one."""
    bodies: dict[str, list[str]] = {"": []}
    title = ""
    for line in docstring.splitlines():
        if match := _SECTION.match(line):
            title = match[1]
            bodies[title] = []
        else:
            bodies[title].append(line)
    return {title: inspect.cleandoc("\n".join(["", *body])).strip() for title, body in bodies.items()}


def _arguments(body: str) -> dict[str, str]:
    """``keyword: meaning`` entries; a continued line is indented."""
    entries = re.findall(r"^(\w+): (.*(?:\n[ \t]+.*)*)", body, flags=re.MULTILINE)
    return {keyword: _one_line(meaning) for keyword, meaning in entries}


def _one_line(text: str) -> str:
    return " ".join(text.split())
