"""`regraft journal`: look at the journal of a data folder, take messages out of it, repair it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import click

from regraft.commands.common import (
    Place,
    counted,
    describe_time,
    parse_place,
    spelled,
    table,
)
from regraft.commands.journal_export import Wanted, wanted_messages, write_json, write_parquet
from regraft.commands.journal_folder import (
    Gap,
    Scan,
    Survey,
    as_made,
    holder,
    locked,
    names_of,
    survey,
)
from regraft.commands.journal_repair import Plan, plan_repair, repair
from regraft.errors import DiskError
from regraft.journal import format
from regraft.journal.audit import Audit, audit
from regraft.journal.format import KINDS, Record
from regraft.journal.streams import Mailbox
from regraft.model.selector import Selector
from regraft.runtime.segments import segment_name

F = TypeVar("F", bound=Callable[..., Any])
DAMAGED = 1
TRIES = 3  # to look at a folder of which a node drops segments meanwhile


def data_option(function: F) -> F:
    """The option that says where the data folder is."""
    return click.option(
        "--data",
        type=click.Path(path_type=Path),
        default="regraft-data",
        envvar="REGRAFT_DATA",
        show_default=True,
        metavar="DIR",
        help="The data folder of a node.",
    )(function)


@click.group()
def journal() -> None:
    """Look at the journal of a data folder, take messages out of it, or repair it.

    \b
    Is everything that was written still there?
        regraft journal verify --data /var/lib/regraft
    What is kept, and for whom?
        regraft journal show
    Yesterday's orders, one JSON object to the line:
        regraft journal export --stream orders --from -24h > orders.jsonl

    No node need run. Where one does, verify and show tell how it was at some
    moment; export and repair want to have the folder for themselves.
    """


# -------------------------------------------------------------------------------- verify


@journal.command()
@data_option
@click.option("--json", "as_json", is_flag=True, help="The answer as one JSON object.")
def verify(data: Path, as_json: bool) -> None:
    """Read all of a journal, and say what was found.

    The exit code is 1 if something that had been written cannot be read.
    What a crash or a power cut left of a write that nobody was told of is no
    damage; the next start overwrites it.
    """
    who = holder(data)
    for _ in range(TRIES):
        before = names_of(data)
        with survey(data) as found:
            audits = list(audit(found.segments))
            damage = [
                f"segment {segment_name(one.first)}: {finding}"
                for one in audits
                for finding in one.findings
            ]
            if found.recovered.damage:
                damage.append(found.recovered.damage)
        if not (who and damage) or before[:1] == names_of(data)[:1]:
            break  # or else a node has dropped what could not be read
    answer = {
        "damaged": bool(damage),
        "damage": damage,
        "notes": _notes(found, who),
        "position": found.recovered.position,
        "segments": [_audited(one) for one in audits],
    }
    if as_json:
        click.echo(json.dumps(answer))
    else:
        _tell(answer, found)
    sys.exit(DAMAGED if damage else 0)


def _notes(found: Survey, who: str) -> list[str]:
    notes = list(found.recovered.findings)
    if who:
        notes.append(f"{who} uses this folder: all of this is of a moment")
    return notes


def _audited(one: Audit) -> dict[str, Any]:
    return {
        "segment": segment_name(one.first),
        "size": one.size,
        "state": "closed" if one.closed else "open" if one.used else "empty",
        "records": sum(one.records.values()),
        "messages": one.messages,
        "from": describe_time(one.first_us),
        "to": describe_time(one.last_us),
        "damaged": bool(one.findings),
    }


def _tell(answer: dict[str, Any], found: Survey) -> None:
    for line in table(answer["segments"]):
        click.echo(line)
    for note in answer["notes"]:
        click.echo(f"note: {note}")
    for damage in answer["damage"]:
        click.secho(f"damage: {damage}", fg="red")
    state = found.recovered.state
    streams = counted(len(state.names), "stream")
    counts = f"{streams}, {counted(len(state.boxes), 'mailbox', 'mailboxes')}"
    if answer["damaged"]:
        click.echo("the journal is damaged; `regraft journal repair` says what it would do")
    else:
        click.echo(f"the journal is whole up to position {answer['position']:,}; {counts}")


# ---------------------------------------------------------------------------------- show


@journal.command()
@data_option
@click.option("--records", is_flag=True, help="List the records themselves.")
@click.option("-n", "--rows", type=click.IntRange(1), default=1000, help="At most so many rows.")
@click.option("--json", "as_json", is_flag=True, help="JSON; with --records one object per line.")
def show(data: Path, records: bool, rows: int, as_json: bool) -> None:
    """Show segments, streams, mailboxes with what waits in them, and publishers.

    \b
    Who does not read?
        regraft journal show
    What was written last, in every detail?
        regraft journal show --records --rows 100000 | tail
    """
    who = holder(data)
    with survey(data) as found:
        if records:
            _show_records(found, rows, as_json)
        else:
            _show_all(found, rows, as_json, who)


def _show_all(found: Survey, rows: int, as_json: bool, who: str) -> None:
    recovered = found.recovered
    state = recovered.state
    answer: dict[str, Any] = {
        "journal": state.journal_id,
        "created": describe_time(state.created_us),
        "position": recovered.position,
        "epoch": recovered.epoch - 1,
        "snapshot": recovered.snapshot,
        "last_record": describe_time(recovered.time_us),
        "notes": _notes(found, who),
        "damage": recovered.damage,
    }
    lists = {
        "segments": [_segment_row(found, number) for number in range(len(found.segments))],
        "streams": [_stream_row(stream) for stream in state.names.values()],
        "mailboxes": [_mailbox_row(mailbox) for mailbox in state.boxes],
        "publishers": [
            {
                "client": one.client_id,
                "sequence": max(0, one.thaw().highest),
                "heard_of": describe_time(one.last_us),
            }
            for one in state.publishers.values()
        ],
    }
    if as_json:
        shown = {name: found_rows[:rows] for name, found_rows in lists.items()}
        click.echo(json.dumps(answer | shown, ensure_ascii=False))
        return
    notes, damage = answer.pop("notes"), answer.pop("damage")
    for name, value in answer.items():
        click.echo(f"{name.ljust(11)}  {spelled(value)}")
    for name, found_rows in lists.items():
        click.echo()
        click.secho(f"{name}: {len(found_rows) or 'none'}", bold=True)
        for line in table(found_rows[:rows]) if found_rows else []:
            click.echo(f"  {line}")
        if len(found_rows) > rows:
            click.echo(f"  {rows} of {len(found_rows)} shown", err=True)
    for note in notes:
        click.echo(f"note: {note}")
    if damage:
        click.secho(f"damage: {damage}", fg="red")


def _segment_row(found: Survey, number: int) -> dict[str, Any]:
    segment = as_made(found.segments[number])
    end = segment.first + segment.size
    trailer = segment.view[segment.size - format.TRAILER_BYTES : segment.size]
    position = found.recovered.position
    begun = segment.first < position
    state = "closed" if format.decode_trailer(trailer) is not None else "open" if begun else "empty"
    return {
        "segment": segment_name(segment.first),
        "size": segment.size,
        "state": state,
        "used": segment.size if end <= position else max(0, position - segment.first),
        "holes": sum(size for _, size in found.recovered.state.holes.get(segment.first, [])),
    }


def _stream_row(stream: Any) -> dict[str, Any]:
    first = stream.first_sequence()
    return {
        "stream": stream.name,
        "topic": stream.pattern or "#",
        "exact": stream.exact,
        "messages": stream.next_sequence - first,
        "first": first,
        "next": stream.next_sequence,
    }


def _mailbox_row(mailbox: Mailbox) -> dict[str, Any]:
    return {
        "mailbox": mailbox.name,
        "topic": mailbox.pattern or "#",
        "exact": mailbox.exact,
        "where": mailbox.selector,
        "waiting": mailbox.waiting,
        "bytes": mailbox.waiting * mailbox.average,
        "first": mailbox.floor,
        "next": mailbox.next_sequence,
        "owner": mailbox.owner,
    }


def _show_records(found: Survey, rows: int, as_json: bool) -> None:
    scan = Scan()
    listed = 0
    for segment in found.segments:
        for record in scan.records(segment, found.end, found.is_closed(segment)):
            if listed == rows:
                click.echo(f"{counted(rows, 'record')} shown; there are more", err=True)
                return
            listed += 1
            row = _record_row(found, record)
            if as_json:
                click.echo(json.dumps(row, ensure_ascii=False))
            else:
                click.echo(
                    f"{row['position']:>14,}  {row['time']}  {row['kind']:<8}  "
                    f"{row['bytes']:>9,}  {row['about']}"
                )
    for gap in scan.gaps:
        click.echo(f"regraft: {_gap_text(gap)}", err=True)


def _gap_text(gap: Gap) -> str:
    place = f"segment {segment_name(gap.first)} from offset {gap.start} on"
    return f"{counted(gap.size, 'byte')} of {place} cannot be read"


def _record_row(found: Survey, record: Record) -> dict[str, Any]:
    kind = KINDS[record.kind] if record.kind < len(KINDS) else str(record.kind)
    return {
        "position": record.position,
        "time": describe_time(record.time_us),
        "kind": kind,
        "bytes": record.next - record.position,
        "epoch": record.epoch,
        "about": " ".join(_about(found, record)),
    }


def _about(found: Survey, record: Record) -> Iterator[str]:
    """What a record is about, in a few words."""
    if record.kind == format.MESSAGES:
        publisher = found.recovered.state.publishers.get(record.publisher)
        yield counted(record.messages, "message")
        if publisher is not None:
            yield f"of {publisher.client_id}"
        for stream, sequence in format.places(record.meta):
            yield f"{found.name_of(stream)}={sequence}"
    elif record.kind == format.SETTLED:
        number, ranges = format.decode_settled(record.payload)
        spans = ", ".join(f"{first} to {last}" for first, last in ranges)
        yield f"{found.name_of(number)}: {spans}"
    elif record.kind == format.TRANSACTION:
        end, serial = format.decode_group(record.payload)
        publisher = found.recovered.state.publishers.get(record.publisher)
        yield f"all or nothing up to position {end}"
        if publisher is not None:
            yield f"serial {serial} of {publisher.client_id.removeprefix('$tx/')}"
    elif record.kind == format.CONTROL and (prepared := _prepared(record)) is not None:
        settled = sum(one.last - one.first + 1 for one in prepared.accepted)
        yield f"transaction {prepared.gid} of {prepared.owner} is prepared:"
        yield f"{counted(prepared.messages, 'message')}, settles {settled}"
    elif record.kind in (format.CONTROL, format.START):
        yield bytes(record.payload).decode(errors="replace")


def _prepared(record: Record) -> format.TxPrepared | None:
    """What is prepared by a record; it is too long to be shown as it is."""
    control = format.decode_control(record.payload)
    return control if isinstance(control, format.TxPrepared) else None


# -------------------------------------------------------------------------------- export


@journal.command()
@data_option
@click.option("--stream", metavar="NAME", help="Only the messages of this retained topic.")
@click.option("--mailbox", metavar="NAME", help="Only what waits in this mailbox.")
@click.option("-w", "--where", metavar="SELECTOR", help="Only what a selector allows.")
@click.option(
    "--from",
    "start",
    default="start",
    metavar="WHEN",
    help="Not what is older: #SEQUENCE, -90m (s, m, h, d, w) or 2026-11-15T10:00.",
)
@click.option("--to", "stop", metavar="WHEN", help="Only what is older than this.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="Not to stdout."
)
@click.option(
    "--parquet", type=click.Path(path_type=Path), metavar="FILE", help="Write a Parquet file."
)
def export(
    data: Path,
    stream: str | None,
    mailbox: str | None,
    where: str | None,
    start: str,
    stop: str | None,
    output: Path | None,
    parquet: Path | None,
) -> None:
    """Write messages out: one JSON object to the line, or a Parquet file.

    \b
    All that is there:
        regraft journal export > all.jsonl
    What was ordered yesterday for more than 100, as a table:
        regraft journal export --stream orders --from 2026-11-14 \\
            --to 2026-11-15 --where "total > 100" --parquet orders.parquet
    What nobody has fetched:
        regraft journal export --mailbox billing

    What cannot be read is left out and reported; the exit code is 1 then.
    --parquet needs pyarrow: pip install 'regraft[parquet]'.
    """
    if stream is not None and mailbox is not None:
        raise click.UsageError("give --stream or --mailbox, not both")
    if output is not None and parquet is not None:
        raise click.UsageError("give --output or --parquet, not both")
    places = parse_place(start), Place() if stop is None else parse_place(stop)
    if stream is None and mailbox is None and any(place.sequence > 1 for place in places):
        raise click.UsageError("a sequence is one of a --stream or a --mailbox")
    selector = Selector.parse(where) if where else None
    gaps: list[Gap] = []
    instead = "read it from there: regraft sub --from start --json"
    with locked(data, instead), survey(data) as found:
        chosen = found.stream(stream) if stream is not None else None
        if mailbox is not None:
            chosen = found.mailbox(mailbox)
        wanted = Wanted(chosen, *places, selector)
        messages = wanted_messages(found, wanted, gaps)
        try:
            if parquet is not None:
                count = write_parquet(messages, found, chosen, parquet)
            elif output is not None:
                with output.open("w", encoding="utf-8") as out:
                    count = write_json(messages, found, chosen, out)
            else:
                count = write_json(messages, found, chosen, sys.stdout)
                sys.stdout.flush()
        except OSError as error:
            target = parquet or output or "stdout"
            reason = (error.strerror or str(error)).lower()
            raise DiskError("disk-full", f"cannot write {target}: {reason}") from None
    if parquet is not None or output is not None:
        click.echo(f"{counted(count, 'message')} written to {parquet or output}", err=True)
    for gap in gaps:
        click.echo(f"regraft: {_gap_text(gap)}", err=True)
    sys.exit(DAMAGED if gaps else 0)


# -------------------------------------------------------------------------------- repair


@journal.command("repair")
@data_option
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def repair_command(data: Path, yes: bool) -> None:
    """Set aside what cannot be read, so that a node can go on with the rest.

    It says what is lost, and asks before it changes anything. What is set
    aside goes to journal/quarantine in the data folder; nothing is deleted.
    The exit code is 1 if you say no.

    \b
    Before, take a copy of the folder, or at least of what can be read:
        regraft journal export > all.jsonl
    """
    with locked(data, "stop it first"):
        with survey(data) as found:
            plan = plan_repair(found)
        if not plan.needed:
            click.echo("there is nothing to repair")
            return
        _tell_plan(plan)
        if not yes and not click.confirm("Set it aside and go on without it?", err=True):
            click.echo("nothing was changed", err=True)
            sys.exit(DAMAGED)
        aside = repair(data, plan)
    click.echo(f"set aside in {aside}; the journal can be used again")


def _tell_plan(plan: Plan) -> None:
    if plan.damage:
        click.echo(f"damage: {plan.damage}")
    click.echo("what is lost:")
    for loss in plan.losses:
        click.echo(f"  {loss}")
    for name, messages in plan.aside.items():
        count = counted(messages, "message")
        click.echo(f"  segment {name} is set aside as a whole; {count} in it can be read")
