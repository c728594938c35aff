"""Groups of commands that import a command when it is named, and that may run one of their own where none is named."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand, TyperGroup

from ..features.errors import SpecError, listed

if TYPE_CHECKING:
    from typer._click import Command, Context, HelpFormatter
    from typer._click.shell_completion import CompletionItem

_CLOSE = 3
"""Most names that an error proposes."""
_NEARLY = 0.75
"""Likeness, from 0 to 1, from which on a word that is no kernel family may be a mistyped command."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A command of the command line.

    Attributes:
        target: Where its function or its `typer.Typer` is: `module:name`, the module within `kernelcast.commands`. With
            `inner`, the function that runs where no command of `inner` is named.
        doc: What it does, in the list of its group; default: the first sentences of its help.
        panel: The panel of that list.
        inner: The commands in it, by name.
        is_hidden: Whether the list leaves it out, as it is an older name of another entry.
    """

    target: str
    doc: str = ""
    panel: str = ""
    inner: Mapping[str, Entry] | None = None
    is_hidden: bool = False


class NamedGroup(TyperGroup):
    """A group that answers a word that is none of its commands with the closest of them, or all."""

    def resolve_command(self, ctx: Context, args: list[str]) -> tuple[str | None, Command | None, list[str]]:
        """The command that the first word names.

        Raises:
            UsageError: there is none; the message has the commands.
        """
        names = self.list_commands(ctx)
        if not args[0].startswith("-") and args[0] not in names and not ctx.resilient_parsing:
            close = difflib.get_close_matches(args[0], names, n=_CLOSE)
            hint = f"did you mean {listed(close)}?" if close else f"there are {listed(names)}"
            ctx.fail(f"no command {args[0]!r}; {hint}")
        return super().resolve_command(ctx, args)


class LazyGroup(TyperGroup):
    """A group whose commands are imported when they are named.

    Args:
        entries: Its commands by name.
        default: `module:name` of the function that runs where the first word names none of them; empty: there is none.
        attrs: Those of `TyperGroup`.
    """

    def __init__(self, *, entries: Mapping[str, Entry], default: str = "", **attrs: Any) -> None:
        super().__init__(**attrs)
        self._entries = entries
        self._default = default

    def get_command(self, ctx: Context, cmd_name: str) -> Command | None:  # noqa: ARG002 - as click calls it
        """The command of a name, None where there is none."""
        if cmd_name not in self.commands and cmd_name in self._entries:
            self.commands[cmd_name] = _load(cmd_name, self._entries[cmd_name])
        return self.commands.get(cmd_name)

    def list_commands(self, ctx: Context) -> list[str]:  # noqa: ARG002 - as click calls it
        """The names that its help lists."""
        return [name for name, entry in self._entries.items() if not entry.is_hidden]

    def make_context(
        self, info_name: str | None, args: list[str], parent: Context | None = None, **extra: Any
    ) -> Context:
        """The context of the group, or of its default command where no other is named: that one then runs, by its name."""
        if not self._default or (args and args[0] in self._entries) or (not args and extra.get("resilient_parsing")):
            return super().make_context(info_name, args, parent, **extra)
        return self._default_command().make_context(info_name, args, parent, **extra)

    def resolve_command(self, ctx: Context, args: list[str]) -> tuple[str | None, Command | None, list[str]]:
        """The command that the first word names.

        Raises:
            UsageError: there is none; the message has the closest names.
        """
        name = args[0]
        if not name.startswith("-") and name not in self._entries and not ctx.resilient_parsing:
            paths = self._paths()
            close = (
                paths.get(name)
                or difflib.get_close_matches(name, self.list_commands(ctx), n=_CLOSE)
                or [path for word in difflib.get_close_matches(name, paths, n=_CLOSE) for path in paths[word]]
            )
            ctx.fail(f"no command {name!r}" + (f"; did you mean {listed(close)}?" if close else ""))
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: Context, incomplete: str) -> list[CompletionItem]:
        """What may follow the group: its commands, and what may follow the default one."""
        items = super().shell_complete(ctx, incomplete)
        if not self._default:
            return items
        default = self._default_command()
        words: Sequence[CompletionItem] = ()
        for param in default.params:
            if param.param_type_name == "argument":
                words = param.shell_complete(ctx, incomplete)
                break
        known = {item.value for item in items}
        options = [item for item in default.shell_complete(ctx, incomplete) if item.value not in known]
        return [*items, *words, *options]

    def help_page(self) -> TyperGroup:
        """A group that is only shown, in help and references: what may be given to the default command, and listed commands."""
        source: Command = self._default_command() if self._default else self
        commands: dict[str, Command] = {}
        for name in self.list_commands(typer.Context(self)):
            command = self.get_command(typer.Context(self), name)
            if command is not None:
                commands[name] = command.help_page() if isinstance(command, LazyGroup) else command
        return TyperGroup(
            name=self.name, help=source.help, short_help=self.short_help, params=list(source.params), commands=commands,
            subcommand_metavar="" if self._default else None, rich_help_panel=self.rich_help_panel,
        )  # fmt: skip

    def _paths(self) -> dict[str, list[str]]:
        """Where the commands within its groups are, by name and by older name."""
        inner = [
            (verb, name, entry) for verb, group in self._entries.items() for name, entry in (group.inner or {}).items()
        ]
        paths: dict[str, list[str]] = {}
        for verb, name, entry in inner:
            older = [
                alias for alias, other in self._entries.items() if other.is_hidden and other.target == entry.target
            ]
            for word in {name, *older}:
                paths.setdefault(word, []).append(f"{verb} {name}")
        return paths

    def _default_command(self) -> _DefaultCommand:
        command = _load(self.name or "", Entry(self._default), _DefaultCommand)
        assert isinstance(command, _DefaultCommand)  # noqa: S101 - it is made by that class
        command.group = self
        return command


class PlainCommand(TyperCommand):
    """A command for one device refuses a second `--device`; of other options of one value the last holds, as in aliases."""

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        """Read the words behind its name.

        Raises:
            UsageError: they cannot be read, or name several devices where one is taken.
        """
        if not ctx.resilient_parsing:
            *_, order = self.make_parser(ctx).parse_args(args=list(args))
            for param, times in Counter(order).items():
                if times > 1 and "--device" in param.opts and not param.multiple:
                    ctx.fail(f"this command answers for one device, and --device is there {times} times")
        return super().parse_args(ctx, args)


class _DefaultCommand(PlainCommand):
    """The command that a group runs where none is named; its help lists the group's commands too."""

    group: LazyGroup

    def format_help(self, ctx: Context, formatter: HelpFormatter) -> None:
        """Write the help."""
        self.group.help_page().format_help(ctx, formatter)

    def invoke(self, ctx: Context) -> Any:
        """Run it.

        Raises:
            SpecError: as it does; where the first word is no kernel family but nearly a command of the group, with that.
        """
        try:
            return super().invoke(ctx)
        except SpecError as error:
            word = next((value for value in ctx.params.values() if isinstance(value, str)), "")
            close = difflib.get_close_matches(word, self.group.list_commands(ctx), n=1, cutoff=_NEARLY)
            if error.field != "family" or not close:
                raise
            advice = f"did you mean `{ctx.command_path} {close[0]}`? {error.advice}".strip()
            raise SpecError(error.reason, field=error.field, advice=advice) from error


def _load(name: str, entry: Entry, cls: type[TyperCommand] | None = None) -> Command:
    """The command of an entry, its module imported; one with `inner` is imported when it runs."""
    if entry.inner is not None:
        command: Command = LazyGroup(name=name, entries=entry.inner, default=entry.target, help=entry.doc)
    else:
        module, _, attribute = entry.target.partition(":")
        target = getattr(import_module(f".{module}", __package__), attribute)
        if not isinstance(target, typer.Typer):
            app = typer.Typer(add_completion=False)
            app.command(name, cls=cls or PlainCommand)(target)
            target = app
        command = typer.main.get_command(target)
        command.name = name
    command.hidden = entry.is_hidden
    _flow(command)
    if isinstance(command, TyperCommand | TyperGroup):
        command.rich_help_panel = entry.panel or None
        command.short_help = entry.doc or command.short_help
    return command


def _flow(command: Command) -> None:
    """Join the lines of each paragraph of its help, and of its commands': these are as long as lines of the source."""
    command.help = "\n\n".join(" ".join(part.split()) for part in (command.help or "").split("\n\n")) or None
    for inner in getattr(command, "commands", {}).values():
        _flow(inner)
