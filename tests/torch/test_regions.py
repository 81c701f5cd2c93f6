"""Regions under torch's emulation: weights paused between steps, and what is refused."""

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "regions.md"


def test_the_example_runs(passes):
    example = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert example is not None
    (line,) = passes(example[1], on=False)
    assert "name='weights', device=0, state='paused', to='host'" in line


def test_training_goes_on_as_if_nothing_had_been_paused(passes):
    passes("pauses.py")


def test_refusals_name_the_region(passes):
    passes("refused_regions.py")


def test_a_copy_of_paused_memory_is_refused_and_nothing_moves(passes):
    """At either end, small and large, with batches, blocks, files and the offloader's pool."""
    passes("paused_copies.py")


def test_each_thread_has_its_own(passes):
    passes("regions_of_threads.py")


def test_a_regions_context_is_used_again(passes):
    passes("regions_again.py")


def test_regions_end_in_the_order_they_began_or_say_so(passes):
    passes("regions_in_order.py")


def test_resumed_without_memory_it_stays_paused_and_whole(passes):
    passes("resumed_without_memory.py", SIM_MEMORY="192MiB", LIMIT="128MiB")


def test_idle_memory_gives_its_mappings_to_a_region(passes):
    passes("resumed_without_mappings.py", SIM_MEMORY="512MiB", SIM_MAX_MAPS="64")


def test_a_full_disk_leaves_the_region_in_use_and_whole(passes):
    """A file-size limit refuses room for the file, as a full disk does."""
    passes("full_disk.py")


def test_a_file_cut_short_or_changed_leaves_the_region_paused(passes):
    """The file has no name, so only this process can reach it, through its open files."""
    passes("damaged_file.py")
