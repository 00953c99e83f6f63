import subprocess
from pathlib import Path

import ptxas_report
import pytest

RECORDED = Path(__file__).resolve().parent / "recorded"  # of recorded/kernels.cu


def recorded(name):
    return (RECORDED / name).read_text()


def named(found):
    """Replaces symbols by names in the keys (architecture, symbol)."""
    names = ptxas_report.demangle(sorted({symbol for _, symbol in found}))
    return {(architecture, ptxas_report.without_parameters(names[symbol])): value for (architecture, symbol), value in found.items()}


@pytest.fixture(scope="module")
def report():
    return named({(k.architecture, k.symbol): k for k in ptxas_report.parse_ptxas(recorded("ptxas.txt"))})


@pytest.fixture(scope="module")
def code():
    return named(ptxas_report.parse_sass(recorded("sass.txt")))


ALL = {(a, name) for a in (80, 90) for name in ("packed<unsigned char>", "packed<uint4>", "multiplied", "spilling", "indexed")}


def test_every_kernel_is_found(report, code):
    assert set(report) == ALL and set(code) == ALL


@pytest.mark.parametrize("architecture", [80, 90])
def test_registers_and_memory(report, architecture):
    def of(name):
        k = report[architecture, name]
        return k.registers, k.stack, k.spill_stores, k.spill_loads, k.shared
    assert of("packed<unsigned char>") == (12, 0, 0, 0, 128)
    assert of("packed<uint4>") == (18, 0, 0, 0, 2048)
    assert of("multiplied") == (22, 0, 0, 0, 0)
    assert of("spilling") == (32, 48, 48, 48, 0)
    assert of("indexed") == (29, 32, 0, 0, 0)  # local memory without a spill


@pytest.mark.parametrize("architecture", [80, 90])
def test_accesses_by_width(code, architecture):
    wide, narrow = code[architecture, "packed<uint4>"], code[architecture, "packed<unsigned char>"]
    assert dict(wide.loads) == {128: 1} and dict(wide.stores) == {128: 1}
    assert dict(narrow.loads) == {8: 1} and dict(narrow.stores) == {8: 1}
    assert dict(code[architecture, "spilling"].loads) == {128: 9}
    assert dict(code[architecture, "multiplied"].loads) == {32: 8}


@pytest.mark.parametrize("architecture", [80, 90])
def test_local_memory_and_tensor_cores(code, architecture):
    for name in ("packed<unsigned char>", "packed<uint4>", "multiplied", "spilling", "indexed"):
        assert (code[architecture, name].local > 0) == (name in ("spilling", "indexed"))
        assert (code[architecture, name].tensor > 0) == (name == "multiplied")


def test_launch_bounds():
    bounds = named(ptxas_report.parse_elf(recorded("elf.txt")))
    for architecture in (80, 90):
        assert {name: threads for (a, name), threads in bounds.items() if a == architecture} == {
            "packed<unsigned char>": 128, "packed<uint4>": 128, "multiplied": 32, "spilling": 1024}  # indexed has none


def test_launch_bounds_multiply_three_dimensions():
    text = "arch = sm_90\n.nv.info._Za\n\tAttribute:\tEIATTR_MAX_THREADS\n\tValue:\t0x10 0x8 0x2 \n" \
           "\tAttribute:\tEIATTR_COOP_GROUP_INSTR_OFFSETS\n\tValue:\t0x950 0x970 0x990 \n"
    assert ptxas_report.parse_elf(text) == {(90, "_Za"): 256}


@pytest.mark.parametrize("modifiers, expected", [(".E", 32), (".E.128", 128), (".E.64.CONSTANT", 64), (".E.U8", 8), (".E.S16", 16),
                                                 (".E.LTC128B", 32), (".E.LTC128B.64", 64), (".E.ENL2.256", 256)])
def test_the_width_is_among_the_modifiers(modifiers, expected):
    assert ptxas_report.access_bits(modifiers) == expected


@pytest.mark.parametrize("name, expected", [("void a::(anonymous namespace)::f<int, a::B<(int)3>>(int*, a::B)", "a::f<int, a::B<(int)3>>"),
                                            ("a::(anonymous namespace)::f(double const*)", "a::f")])
def test_names_without_parameters(name, expected):
    assert ptxas_report.without_parameters(name) == expected


@pytest.fixture
def build(tmp_path):
    """A folder with the source of a kernel and a build folder with its object and ptxas report."""
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "mixed.cu").touch()
    objects = tmp_path / "build" / "CMakeFiles" / "maestro_kernels_nvcc.dir" / "kernels"
    objects.mkdir(parents=True)
    (objects / "mixed.cu.o").touch()
    (objects / "mixed.cu.o.ptxas").write_text(recorded("ptxas.txt"))
    return tmp_path


def test_a_build_is_read_by_source(build):
    kernels = ptxas_report.read_build(build / "build", build / "kernels")
    assert {k.source for k in kernels} == {"mixed"} and len(kernels) == 10


def test_second_forms_are_read_without_kernels_of_cub(build):
    (build / "kernels/nvcc").mkdir()
    (build / "kernels/nvcc/sort.cu").touch()
    objects = build / "build/CMakeFiles/maestro_kernels_nvcc.dir/kernels/nvcc"
    objects.mkdir()
    (objects / "sort.cu.o").touch()
    (objects / "sort.cu.o.ptxas").write_text("".join(
        f"ptxas info    : Compiling entry function '{symbol}' for 'sm_90'\nptxas info    : Used 8 registers\n"
        for symbol in ("_ZN3cub5EmptyEv", "_ZN7maestro6numberEv")))
    kernels = [k for k in ptxas_report.read_build(build / "build", build / "kernels") if k.source != "mixed"]
    assert [(k.source, k.name) for k in kernels] == [("nvcc/sort", "maestro::number")]


def test_a_missing_object_is_an_error(build):
    (build / "kernels" / "other.cu").touch()
    with pytest.raises(SystemExit, match="other.cu.o or its .ptxas does not exist: build maestro_kernels_nvcc"):
        ptxas_report.read_build(build / "build", build / "kernels")


def test_a_missing_report_is_an_error(build):
    (build / "build/CMakeFiles/maestro_kernels_nvcc.dir/kernels/mixed.cu.o.ptxas").unlink()
    with pytest.raises(SystemExit, match="build maestro_kernels_nvcc"):
        ptxas_report.read_build(build / "build", build / "kernels")


def test_a_report_without_kernels_is_an_error(build):
    (build / "build/CMakeFiles/maestro_kernels_nvcc.dir/kernels/mixed.cu.o.ptxas").write_text("")
    with pytest.raises(SystemExit, match="names no kernel"):
        ptxas_report.read_build(build / "build", build / "kernels")


def test_a_missing_cuobjdump_is_an_error():
    with pytest.raises(SystemExit, match="pip install nvidia-cuda-cuobjdump"):
        ptxas_report.find_cuobjdump("/nowhere/cuobjdump")


KEEP = Path(__file__).resolve().parents[3] / "cmake" / "keep_ptxas.sh"


def test_the_launcher_runs_the_compiler(tmp_path):
    """keep_ptxas.sh passes on the exit code and other messages, and writes the ptxas report beside the object."""
    script = "cat recorded/ptxas.txt >&2; echo \"a.cu(1): warning\" >&2; exit 3"
    done = subprocess.run([KEEP, "bash", "-c", script, "-c", "a.cu", "-o", tmp_path / "a.o"], capture_output=True, text=True,
                          cwd=Path(__file__).parent)
    assert done.returncode == 3 and done.stdout == "" and done.stderr == "a.cu(1): warning\n"
    assert len(ptxas_report.parse_ptxas((tmp_path / "a.o.ptxas").read_text())) == 10
