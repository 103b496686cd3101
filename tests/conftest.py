"""For all tests: generated examples are the same every time, however slow the machine is.

What goes through everything (each byte, each ordinal, very many made-up cases) is a slow test, so
that `make check` stays short; `make test` runs them all.
"""

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "fixed",
    derandomize=True,
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("fixed")

THOROUGH = (  # files, or beginnings of names of tests in them
    "fuzz/test_damaged_records.py",
    "fuzz/test_index.py",
    "simulation/test_durable_story.py",
    "simulation/test_every_ordinal.py",
    "simulation/test_forwarding_model.py",
    "simulation/test_mailbox_model.py::TestMailbox",
    "simulation/test_network_story.py::test_nothing_is_wrong",
    "simulation/test_network_story.py::test_the_s",
    "simulation/test_overlay_model.py",
    "simulation/test_story.py::test_interpreted",
    "unit/commands/test_journal_command.py::test_whatever_is_damaged",
    "unit/journal/test_journal_index.py",
    "unit/journal/test_journal_power.py",
    "unit/journal/test_journal_recovery.py::test_the_last_bytes",
    "unit/kernels/test_arrays.py::test_large_arrays",
    "unit/kernels/test_lane.py::test_compiled_equals",
    "unit/kernels/test_lane.py::test_every_taker",
    "unit/kernels/test_matching.py::test_what_a_name_leads_to",
    "unit/kernels/test_matrix.py",
    "unit/kernels/test_selection.py::test_generated",
    "unit/kernels/test_selection.py::test_like_on_all",
    "unit/kernels/test_windows.py::test_like_a_set",
    "unit/node/test_router_links.py::test_of_very_many",
    "unit/model/test_cover.py::test_no_answer_is_unsafe",
    "unit/model/test_selector_laws.py",
    "unit/node/test_node_opening.py::test_two_cuts",
    "unit/node/test_node_opening.py::test_where_the_bytes",
    "unit/routing/test_forms.py::test_forms_from_texts",
    "unit/session/test_backlog.py::TestBacklog",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the thorough ones."""
    for item in items:
        name = item.nodeid.removeprefix("tests/")
        found = name.startswith(THOROUGH)
        if found:
            item.add_marker(pytest.mark.slow)
