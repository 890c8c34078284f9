"""The compiler of loops: runs in a process of its own and writes machine code to standard output.

    python -m specsim.core.compiler MODULE

numba's optimised LLVM code (``CFunc.inspect_llvm``) becomes an object file; where the machine has a
linker, as most with a C compiler do, a shared library, which a run loads without llvmlite and its
50 MiB.
"""

import ctypes
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from shutil import which
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from specsim.core.compiled import Loop, Types, inner, loops_of, symbol
from specsim.core.machine_code import sealed

_OF_PYTHON = ("Py", "_Py", "NRT_", "numba_")  # what numba's code refers to where it would raise


def _numba() -> Any:
    """Return numba, with its `extending`; only in the compiler's own process."""
    import_module("numba.extending")
    return import_module("numba")


def machine_code(loops: list[Loop]) -> bytes:
    """Return the machine code of a module's loops; only their own names are seen by others."""
    import llvmlite.binding as llvm  # noqa: PLC0415 - heavy, and only here

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    whole, *others = (llvm.parse_assembly(_llvm_code(loop)) for loop in loops)
    for other in others:
        whole.link_in(other)
    _cut_off(llvm, whole)
    names = [symbol(loop) for loop in loops]
    for value in [*whole.functions, *whole.global_variables]:
        if not value.is_declaration and value.name not in names:
            value.linkage = "internal"  # the code of another module may have the same name
    library = _library(_emitted(llvm, whole, reloc="pic", codemodel="small"), names)
    return library or _emitted(llvm, whole, reloc="static", codemodel="large")


def _cut_off(llvm: Any, whole: Any) -> None:
    """Make code stand alone: what it refers to in Python and never reaches becomes a trap."""
    text = "declare void @llvm.trap()\n"
    for value in whole.functions:
        if value.is_declaration and value.name.startswith(_OF_PYTHON):
            text += f"define void @{value.name}() {{ call void @llvm.trap() unreachable }}\n"
    for value in whole.global_variables:
        if value.is_declaration and value.name.startswith(_OF_PYTHON):
            text += f"@{value.name} = global ptr null\n"
    whole.link_in(llvm.parse_assembly(text))


def _emitted(llvm: Any, whole: Any, *, reloc: str, codemodel: str) -> bytes:
    target = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        opt=3,
        reloc=reloc,
        codemodel=codemodel,
    )
    code: bytes = target.emit_object(whole)
    return code


def _library(code: bytes, names: list[str]) -> bytes | None:
    """Return an object file as a shared library; None where that cannot be had."""
    linker = which("ld") or which("ld.lld")
    if linker is None or sys.platform != "linux":
        return None
    with TemporaryDirectory(prefix="specsim-") as folder:
        made, linked = Path(folder, "loops.o"), Path(folder, "loops.so")
        made.write_bytes(code)
        command = [linker, "-shared", "-o", str(linked), str(made)]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            return None
        try:
            library = ctypes.CDLL(str(linked))
            for name in names:
                _ = library[name]
        except (OSError, AttributeError):
            return None
        return linked.read_bytes()


def _llvm_code(loop: Loop) -> str:
    numba = _numba()
    function = inner(loop.function)
    handle = _handle(_fields(loop.types))

    def typed(context, address):  # type: ignore[no-untyped-def]
        def generate(context, builder, signature, values):  # type: ignore[no-untyped-def]
            return builder.bitcast(values[0], context.get_value_type(handle))

        return handle(address), generate

    as_handle = numba.extending.intrinsic(typed)

    def entry(address):  # type: ignore[no-untyped-def]
        return function(as_handle(address))

    whole = numba.types.int64
    compiled = numba.cfunc(whole(numba.types.CPointer(whole)))(entry)
    text: str = compiled.inspect_llvm()
    return text.replace(compiled.native_name, symbol(loop))


def _fields(types: Types) -> tuple[tuple[str, Any], ...]:
    """Return types as a key."""
    return tuple(
        (field, _fields(kind) if isinstance(kind, Mapping) else (np.dtype(kind[0]), kind[1]))
        for field, kind in types.items()
    )


@cache
def _handle(fields: tuple[tuple[str, Any], ...]) -> Any:
    """Return the type of a `NamedTuple` in compiled code: one pointer, not hundreds of values."""
    numba = _numba()
    types, extending = numba.types, numba.extending

    class Handle(types.Type):  # type: ignore[misc, name-defined]
        pass

    handle = Handle(name=f"arrays_{sha256(repr(fields).encode()).hexdigest()[:12]}")
    extending.register_model(Handle)(extending.models.OpaqueModel)
    for number, (field, kind) in enumerate(fields):
        first = 3 * number
        if isinstance(kind[0], tuple):
            found = _attribute(_loaded_number(handle, first, _handle(kind)))
        else:
            dtype, ndim = kind
            address = _loaded_number(handle, first, types.CPointer(numba.from_dtype(dtype)))
            shape = [_loaded_number(handle, first + 1 + n, types.int64) for n in range(2)]
            found = _array(numba.carray, address, (shape[0], shape[1]), ndim)
        extending.overload_attribute(Handle, field)(found)
    return handle


def _loaded_number(handle: Any, place: int, kind: Any) -> Any:
    """Return what loads one of the numbers behind a handle: an address, or a length."""
    from llvmlite import ir  # noqa: PLC0415 - see above

    numba = _numba()

    def typed(context, value):  # type: ignore[no-untyped-def]
        def generate(context, builder, signature, values):  # type: ignore[no-untyped-def]
            whole = ir.IntType(64)
            numbers = builder.bitcast(values[0], whole.as_pointer())
            number = builder.load(builder.gep(numbers, [ir.Constant(whole, place)]))
            number.set_metadata("invariant.load", builder.module.add_metadata([]))
            if kind is numba.types.int64:
                return number
            return builder.inttoptr(number, context.get_value_type(kind))

        return kind(handle), generate

    return numba.extending.intrinsic(typed)


def _attribute(pointers: Any) -> Any:
    """Return how compiled code gets at one tuple in another."""

    def found(arrays):  # type: ignore[no-untyped-def]
        return lambda arrays: pointers(arrays)  # noqa: PLW0108 - numba wants a function

    return found


def _array(carray: Any, address: Any, shape: tuple[Any, Any], ndim: int) -> Any:
    """Return how compiled code gets at one array of a handle."""
    rows, columns = shape

    def line(arrays):  # type: ignore[no-untyped-def]
        return lambda arrays: carray(address(arrays), (rows(arrays),))

    def plane(arrays):  # type: ignore[no-untyped-def]
        return lambda arrays: carray(address(arrays), (rows(arrays), columns(arrays)))

    return line if ndim == 1 else plane


def _main() -> None:
    out, sys.stdout = sys.stdout, sys.stderr  # whatever an import prints does not get in between
    out.buffer.write(sealed(machine_code(loops_of(sys.argv[1]))))


if __name__ == "__main__":
    _main()
