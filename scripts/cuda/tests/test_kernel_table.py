import kernel_table
import pytest
from ptxas_report import Kernel


def kernel(name="maestro::kernels::forward<float, 4>", architecture=90, **values):
    return Kernel("_Z", architecture, **{"registers": 32, "source": "norm", "name": name, "threads": 256, **values})


@pytest.mark.parametrize("name, expected", [
    ("maestro::kernels::forward<float, 4>", "norm: forward"),
    ("maestro::kernels::sum_in_order", "norm: sum_in_order"),
    ("maestro::kernels::for_each<8, maestro::kernels::Add<maestro::bf16>>", "norm: Add by for_each"),
    ("maestro::kernels::nvcc::number", "norm: number"),
    ("maestro::kernels::sum_chunks<float, maestro::kernels::Weight<float>>", "norm: Weight by sum_chunks")])
def test_a_row_is_a_function_or_a_function_object(name, expected):
    assert kernel_table.row_name(kernel(name)) == expected


def test_a_row_holds_the_span_of_its_instantiations():
    row = kernel_table.row_of("r", [kernel(loads={128: 2}, stores={32: 1}), kernel(registers=64, loads={16: 1, 128: 0}, stores={128: 1})])
    assert row == ["r", "2", "256", "32-64", "0", "0", "1, 1", "0", "50-100%", "27.5"]


def test_architectures_are_separate_where_they_differ():
    row = kernel_table.row_of("r", [kernel(architecture=80, loads={128: 1}, stores={}), kernel(registers=40, loads={128: 1}, stores={})])
    assert row[1] == "1" and row[3] == "32 / 40" and row[6] == "1, 0" and row[8] == "100% / 75%" and row[9] == "19.5 / 37.0"


def test_without_launch_bounds_there_is_no_occupancy():
    assert kernel_table.row_of("r", [kernel(threads=0)])[8:] == ["", ""]


@pytest.mark.parametrize("accesses, expected", [({}, False), ({64: 3, 32: 1}, False), ({128: 0}, False), ({32: 9, 128: 1}, True),
                                                ({256: 1}, True)])
def test_wide_accesses(accesses, expected):
    assert kernel_table.is_wide(accesses) == expected


def test_the_table_is_read_as_it_was_written():
    kernels = [kernel(), kernel("maestro::kernels::backward<float>")]
    table = kernel_table.table_of(kernels)
    assert kernel_table.read_table(table) == {"norm: backward": "0", "norm: forward": "0"}
    assert list(kernel_table.errors(kernels, table)) == []


@pytest.mark.parametrize("values", [{"stack": 8}, {"spill_stores": 4}, {"spill_loads": 4}])
def test_local_memory_and_spills_are_errors(values):
    table = kernel_table.table_of([kernel()])
    found = list(kernel_table.errors([kernel(**values)], table))
    assert "norm.cu: maestro::kernels::forward<float, 4> has" in found[0] and "in the table: regenerate the table" in found[1]
    found = list(kernel_table.errors([kernel(**values)], kernel_table.table_of([kernel(**values)])))
    assert len(found) == 1, "local memory is an error even if the table has it"


def test_new_and_removed_kernels_are_errors():
    table = kernel_table.table_of([kernel()])
    found = list(kernel_table.errors([kernel("maestro::kernels::backward<float>")], table))
    assert found == ["norm: backward: missing in the table: regenerate the table",
                     "norm: forward: the table has it, but there is no such kernel: regenerate the table"]
