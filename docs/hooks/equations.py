"""The plain-text equations of docstrings as MathML, which browsers draw without a script or a typeface.

``L = mean over anchors of (1/α) log(1 + Σ_{P_i} e^{−α(S − λ)})`` is what a person reads in a terminal. The
same line becomes LaTeX by a few rules, and LaTeX becomes MathML when the site is built.
"""

from __future__ import annotations

import re

from latex2mathml.converter import convert

_SYMBOLS = {
    "−": "-",
    "·": r"\cdot ",
    "≠": r"\ne ",
    "≥": r"\ge ",
    "≤": r"\le ",
    "∈": r"\in ",
    "∉": r"\notin ",
    "∂": r"\partial ",
    "⌈": r"\lceil ",
    "⌉": r"\rceil ",
    "²": "^2",
    "⁺": "^+",
    "⁻": "^-",
    "₊": "_+",
    "Σ": r"\sum ",
    "σ": r"\sigma ",
    "π": r"\pi ",
    "α": r"\alpha ",
    "β": r"\beta ",
    "γ": r"\gamma ",
    "δ": r"\delta ",
    "ε": r"\epsilon ",
    "θ": r"\theta ",
    "λ": r"\lambda ",
    "μ": r"\mu ",
    "ν": r"\nu ",
    "τ": r"\tau ",
    "ω": r"\omega ",
    "‖": r"\Vert ",
    "|": r"\vert ",
}
_FUNCTIONS = ("log", "cos", "sin", "tan", "exp", "min")
_OPERATORS = ("LSE", "softmax", "softplus", "KL")


def to_latex(line: str) -> str:
    r"""One line of a docstring's equation in LaTeX.

    >>> to_latex("L = mean over pairs of [S_an − S_ap + λ]₊")
    'L =\\text{ mean over pairs of }[S_{an} - S_{ap} + \\lambda ]_+'
    >>> to_latex("(1/α) log(1 + Σ_{P_i} e^{−α(S − λ)})")
    '\\frac{1}{\\alpha } \\log(1 + \\sum _{P_i} e^{-\\alpha (S - \\lambda )})'
    """
    line = _words(line.strip())
    line = _roots(line)
    line = re.sub(r"\(1/([^()]+?)\)", r"\\frac{1}{\1}", line)
    line = re.sub(r"(?<![A-Za-z{\\])([A-Za-zα-ω])_([A-Za-z]+'?)", r"\1_{\2}", line)
    line = re.sub(r"(?<!\w)(\d)e−(\d)", r"\1 · 10^{−\2}", line).replace("1 · 10", "10")
    for name in _FUNCTIONS:
        line = re.sub(rf"(?<![A-Za-z\\]){name}(?![A-Za-z])", rf"\\{name}", line)
    for name in _OPERATORS:
        line = re.sub(rf"(?<![A-Za-z\\]){name}(?![A-Za-z])", rf"\\operatorname{{{name}}}", line)
    for symbol, latex in _SYMBOLS.items():
        line = line.replace(symbol, latex)
    return line


def _roots(line: str) -> str:
    """``√(…)`` with whatever is inside its brackets."""
    while (start := line.find("√(")) >= 0:
        depth, end = 1, start + 2
        while depth:
            depth += {"(": 1, ")": -1}.get(line[end], 0)
            end += 1
        line = f"{line[:start]}\\sqrt{{{line[start + 2 : end - 1]}}}{line[end:]}"
    return line


def _words(line: str) -> str:
    """Runs of words become text, and so do settings; a lone "a" between words belongs to them."""
    word = (
        rf"(?:(?!(?:{'|'.join((*_FUNCTIONS, *_OPERATORS))})(?![a-z]))[A-Za-z]{{2,}}|(?<= )a(?= [a-z]{{2,}}))"
    )
    run = rf"(?<![\\_A-Za-z]){word}(?:[ -]{word})*(?![A-Za-z_{{(])"
    setting = r"\b\w{3,}=\w+\b"
    return re.sub(rf"( ?)({setting}|{run})(,? ?)", _as_text, line)


def _as_text(found: re.Match[str]) -> str:
    before, words, after = found.groups()
    return rf"\text{{{before}{words}{after}}}"


def equation_html(text: str) -> str:
    """An equation of one or more lines: each is drawn on its own, continued ones further in."""
    lines = []
    for line in text.splitlines():
        if line.strip():
            further_in = ' class="continued"' if line.startswith(" ") else ""
            drawn = convert(to_latex(line), display="block")
            lines.append(f"<div{further_in}>{drawn}</div>")
    return f'<div class="equation">{"".join(lines)}</div>'


def replace_blocks(markdown: str) -> str:
    """Markdown whose ``equation`` blocks have become MathML."""
    return re.sub(
        r"^```equation\n(.*?)^```$",
        lambda block: equation_html(block[1]),
        markdown,
        flags=re.DOTALL | re.MULTILINE,
    )
