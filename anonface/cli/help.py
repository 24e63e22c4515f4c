"""Help texts: options in named groups, examples, and the former names of options."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from typer import Context
from typer.core import TyperCommand, TyperGroup

if TYPE_CHECKING:
    from typer._click import HelpFormatter

OUTPUT, KEY, FACES, QUALITY = "Output", "Key", "Faces", "Quality and speed"
FILES, BATCH, EXPERT = "Files and metadata", "Batch", "Expert"
PHOTOS, MEASUREMENT = "Photos", "Measurement"
OTHER = "Options"  # those that name no group
FORMER_NAMES = {
    "compare": {"--beside": "--compare-with"},
    "evaluate": {
        "--beside": "--compare-with",
        "--attacks": "--degradations",
        "--attack-keys": "--degradation-keys",
    },
}
"""Options that were renamed, by command: the former name is still accepted, and shown nowhere."""
DROPPED = ("--quality", "--refine")  # with their values: options of earlier versions that have no effect any more
NO_BREAK = "\N{NO-BREAK SPACE}"
COLUMN = 23  # characters of an option; the help of a longer one begins on the next line


class HelpCommand(TyperCommand):
    """A command whose help groups its options and ends with examples."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Accept former names of options too."""
        present = _with_present_names(args, FORMER_NAMES.get(self.name or "", {}))
        return super().parse_args(ctx, _without_dropped(present, {name for p in self.params for name in p.opts}))

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The arguments as the help lists them, optional ones in brackets."""
        pieces = ["[OPTIONS]"]
        for parameter in self.get_params(ctx):
            if parameter.param_type_name == "argument":
                name = f"{parameter.metavar}{'...' * (parameter.nargs == -1)}"
                pieces.append(name if parameter.required else f"[{name}]")
        return pieces

    def format_options(self, ctx: Any, formatter: HelpFormatter) -> None:
        """Write one section for each group, in the order in which the command names them."""
        rows: list[tuple[str, tuple[str, str]]] = []
        for parameter in self.get_params(ctx):
            if record := parameter.get_help_record(ctx):
                if parameter.param_type_name == "argument":
                    rows.append(("Arguments", (parameter.metavar or record[0], _tidied(record[1]))))
                else:
                    group = getattr(parameter, "rich_help_panel", None) or OTHER
                    rows.append((group, (record[0], _tidied(record[1]))))
        _write_groups(formatter, rows)

    def get_help(self, ctx: Any) -> str:
        """The help, without the marks that kept defaults on one line."""
        return super().get_help(ctx).replace(NO_BREAK, " ")

    def format_epilog(self, ctx: Any, formatter: HelpFormatter) -> None:
        """Write the examples as they are typed."""
        _write_examples(formatter, self.epilog)


class HelpGroup(TyperGroup):
    """A group of commands, whose help groups them."""

    def format_commands(self, ctx: Any, formatter: HelpFormatter) -> None:
        """Write one section for each group of commands."""
        rows = []
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            if command and not command.hidden:
                group = getattr(command, "rich_help_panel", None) or "Commands"
                rows.append((group, (name, command.get_short_help_str(limit=200))))
        _write_groups(formatter, rows)

    def format_epilog(self, ctx: Any, formatter: HelpFormatter) -> None:
        """Write the examples as they are typed."""
        _write_examples(formatter, self.epilog)


def quick_help(root: TyperGroup, args: Sequence[str]) -> str | None:
    """The help that ``args`` ask for, if they are names of commands and ``--help``.

    typer parses the options of every group on the way to a command, and loads a large library for it.
    """
    *names, last = args
    if last != "--help":
        return None
    command: Any = root
    context = Context(command, info_name=root.name)
    for name in names:
        command = command.commands.get(name) if isinstance(command, TyperGroup) else None
        if command is None:
            return None
        context = Context(command, info_name=name, parent=context)
    return command.get_help(context)


def written_help(command: Any, name: str, parent: Context | None = None) -> Iterator[tuple[str, str]]:
    """The full name and help of a command, then of all that it groups."""
    context = Context(command, info_name=name, parent=parent)
    yield context.command_path, command.get_help(context)
    for called, inner in getattr(command, "commands", {}).items():
        if not inner.hidden:
            yield from written_help(inner, called, context)


def _tidied(text: str) -> str:
    """typer's help of an option with its default and range in plain words, kept on one line."""
    text, bracket, extra = text.partition("  [")
    extra = re.sub(r"default: \((.*?)\)(?=[;\]])", r"default: \1", extra)
    extra = re.sub(r"(; |^)x>=\d+", "", extra)
    extra = re.sub(r"(\d+)<=x<=(\d+)", r"\1 to \2", extra)
    return text if extra == "]" else text + bracket.replace("  ", " ") + extra.replace(" ", NO_BREAK)


def _write_groups(formatter: HelpFormatter, rows: Sequence[tuple[str, tuple[str, str]]]) -> None:
    groups: dict[str, list[tuple[str, str]]] = {}
    for group, row in rows:
        groups.setdefault(group, []).append(row)
    if len(groups) > 1 and OTHER in groups:
        groups[OTHER] = groups.pop(OTHER)  # last
    width = min(COLUMN, max(len(name) for _, (name, _) in rows))
    for group, entries in groups.items():
        with formatter.section(group):
            formatter.write_dl([(f"{name:{width}}", text) for name, text in entries], col_max=width)


def _write_examples(formatter: HelpFormatter, examples: str | None) -> None:
    if examples:
        with formatter.section("Examples"):
            for line in examples.splitlines():
                formatter.write(f"{'':{formatter.current_indent}}{line}\n")


def _with_present_names(args: Sequence[str], present: dict[str, str]) -> list[str]:
    end = args.index("--") if "--" in args else len(args)
    renamed = []
    for arg in args[:end]:
        name, equals, value = arg.partition("=")
        renamed.append(f"{present.get(name, name)}{equals}{value}")
    return [*renamed, *args[end:]]


def _without_dropped(args: Sequence[str], known: set[str]) -> list[str]:
    """Arguments without options of DROPPED that the command does not know, and their values."""
    end = args.index("--") if "--" in args else len(args)
    kept, value = [], False
    for arg in args[:end]:
        name, equals, _ = arg.partition("=")
        if value:
            value = False
        elif name in DROPPED and name not in known:
            value = not equals
        else:
            kept.append(arg)
    return [*kept, *args[end:]]
