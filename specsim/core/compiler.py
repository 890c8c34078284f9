"""The compiler of loops: runs in a process of its own and writes machine code to standard output.

    python -m specsim.core.compiler MODULE

numba types and lowers each function once; what it would do beyond that, to optimise each function
with all that it calls and to put it into its own process, takes longer than all else. Here the code
of all functions is linked and optimised once. It becomes an object file; where the machine has a
linker, as most with a C compiler do, a shared library, which a run loads without llvmlite and its
50 MiB.
"""

import ctypes
import gc
import re
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import cache, partial
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from shutil import which
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from specsim.core.compiled import (
    HOOK,
    HOOKS,
    Loop,
    Types,
    has,
    inner,
    loops_of,
    may_allocate,
    run,
    run_at,
    symbol,
)
from specsim.core.machine_code import sealed

_OF_TUPLES_ALONE = re.compile(r"E(\d+arrays_[0-9a-f]{12})+$")
"""How numba's names end, by arguments."""
_OF_ARRAYS = re.compile(r" of type arrays_[0-9a-f]{12}")
_PLACE = re.compile(r"(?:at |File \")(\S+\.py)(?: \(|\", line )(\d+)")
_OURS = re.compile(r"/numba/|/specsim/decisions/loops\.py")  # where nobody has anything to correct
_NO_REASON = re.compile(
    r"(\w+: )?Failed in|No implementation of function Function\(<function|>>>|There are|- Of which|"
    r"Overload in|With argument|Rejected as|- Resolution failure"
)
"""How those lines of numba's errors begin that say no more than that there is one."""
_OF_PYTHON = ("Py", "_Py", "NRT_", "numba_")  # what numba's code refers to where it would raise
_ENTRY = """
declare i32 @"{called}"(ptr, ptr, ptr)
define i64 @"{name}"(ptr %address) {{
  %found = alloca i64
  %error = alloca ptr
  store ptr null, ptr %error
  %status = call i32 @"{called}"(ptr %found, ptr %error, ptr %address)
  %value = load i64, ptr %found
  ret i64 %value
}}
"""
"""The way in from Python. numba's own would tell Python of an error, of which there is none."""
_NEVER_CALLED = {
    "PyErr_SetString": "define void @PyErr_SetString() { call void @llvm.trap() unreachable }\n",
    "PyExc_RuntimeError": "@PyExc_RuntimeError = global ptr null\n",
}
"""What stays of telling Python an error's text, by name, and what stands in its place."""
_MEMORY = """
declare ptr @malloc(i64)
declare void @free(ptr)
define ptr @NRT_Allocate(i64 %size) {
  %data = call ptr @malloc(i64 %size)
  ret ptr %data
}
define void @NRT_Free(ptr %data) {
  call void @free(ptr %data)
  ret void
}
define ptr @NRT_MemInfo_alloc_aligned(i64 %size, i32 %align) {
  %step = zext i32 %align to i64
  %room = add i64 %step, 48
  %all = add i64 %size, %room
  %info = call ptr @malloc(i64 %all)
  %failed = icmp eq ptr %info, null
  br i1 %failed, label %done, label %made
made:
  %start = ptrtoint ptr %info to i64
  %end = add i64 %start, %room
  %over = urem i64 %end, %step
  %place = sub i64 %end, %over
  %data = inttoptr i64 %place to ptr
  store [6 x i64] [i64 1, i64 0, i64 0, i64 0, i64 0, i64 0], ptr %info
  %field = getelementptr i64, ptr %info, i64 3
  store ptr %data, ptr %field
  br label %done
done:
  ret ptr %info
}
define ptr @NRT_MemInfo_alloc(i64 %size) {
  %info = call ptr @NRT_MemInfo_alloc_aligned(i64 %size, i32 16)
  ret ptr %info
}
define ptr @NRT_MemInfo_new_varsize_dtor(i64 %size, ptr %drop) {
  %info = call ptr @NRT_MemInfo_alloc_aligned(i64 %size, i32 16)
  %failed = icmp eq ptr %info, null
  br i1 %failed, label %done, label %made
made:
  %field = getelementptr i64, ptr %info, i64 1
  store ptr %drop, ptr %field
  br label %done
done:
  ret ptr %info
}
define ptr @NRT_MemInfo_data_fast(ptr %info) {
  %field = getelementptr i64, ptr %info, i64 3
  %data = load ptr, ptr %field
  ret ptr %data
}
define void @NRT_incref(ptr %info) alwaysinline {
  %is_none = icmp eq ptr %info, null
  br i1 %is_none, label %done, label %counts
counts:
  %count = load i64, ptr %info
  %more = add i64 %count, 1
  store i64 %more, ptr %info
  br label %done
done:
  ret void
}
define void @NRT_decref(ptr %info) alwaysinline {
  %is_none = icmp eq ptr %info, null
  br i1 %is_none, label %done, label %counts
counts:
  %count = load i64, ptr %info
  %left = sub i64 %count, 1
  store i64 %left, ptr %info
  %is_last = icmp eq i64 %left, 0
  br i1 %is_last, label %last, label %done
last:
  %field = getelementptr i64, ptr %info, i64 1
  %drop = load ptr, ptr %field
  %owns = icmp ne ptr %drop, null
  br i1 %owns, label %drops, label %frees
drops:
  %data = call ptr @NRT_MemInfo_data_fast(ptr %info)
  call void %drop(ptr %data, i64 0, ptr null)
  br label %frees
frees:
  call void @free(ptr %info)
  br label %done
done:
  ret void
}
"""
"""What numba's arrays and the texts of its errors are made of: in front of the data 48 bytes, first
a count of references, second what lets go of what they hold, fourth the place of the data (numba
``core/runtime/nrt.cpp``). numba's own is for threads that share arrays, and in C.
"""


def _numba() -> Any:
    """Return numba, with its `extending`; only in the compiler's own process."""
    import_module("numba.extending")
    return import_module("numba")


def machine_code(loops: list[Loop]) -> bytes:
    """Return the machine code of a module's loops; only their own names are seen by others."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    whole = llvm.parse_assembly("")
    _lower_only()
    _let_hooks_be_called()
    if may_allocate(loops[0].module):
        _need_whole_numbers()
    of_arrays: Any = import_module("numba.np.arrayobj")
    of_arrays._attempt_nocopy_reshape = _strides_in_a_row
    libraries: dict[int, Any] = {}
    for loop in loops:
        _collect(_lowered(llvm, loop), libraries)
    for library in libraries.values():
        if library.name != "nrt":  # what `_MEMORY` is for
            whole.link_in(library._final_module)
    whole.link_in(llvm.parse_assembly(_MEMORY))
    names = [symbol(loop) for loop in loops]
    for value in [*whole.functions, *whole.global_variables]:
        if not value.is_declaration and value.name not in names:
            value.linkage = "internal"  # the code of another module may have the same name
    _optimise(llvm, whole)
    _cut_off(llvm, whole)
    library = _linked(_emitted(llvm, whole, reloc="pic", codemodel="small"), names)
    return library or _emitted(llvm, whole, reloc="static", codemodel="large")


def _lower_only() -> None:
    """Make numba stop at the plain LLVM code of each function; nothing runs in this process."""
    from numba.core.codegen import JITCodeLibrary, JITCPUCodegen

    class Library(JITCodeLibrary):
        def add_ir_module(self, module: Any) -> None:
            _keep_apart(module.functions)
            _tell_nobody(module.functions)
            super().add_ir_module(module)

        def _optimize_functions(self, module: Any) -> None:
            module.data_layout = self._codegen._data_layout

        def finalize(self) -> None:
            self._finalized = True

        def get_pointer_to_function(self, name: str) -> int:
            return 0

    class Codegen(JITCPUCodegen):
        _library_class = Library

        def set_env(self, name: str, environment: Any) -> None:
            pass

    context = import_module("numba.core.registry").cpu_target.target_context
    context._internal_codegen = Codegen("specsim")


def _let_hooks_be_called() -> None:
    """Make `run` call what a hook says, by its address, and `has` look whether there is one.

    `run_at` calls one of several.
    """
    from llvmlite import ir

    numba = _numba()
    whole = ir.IntType(64)

    def typed(context: Any, hook: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            code, argument = (builder.extract_value(values[0], place) for place in range(2))
            kind = ir.FunctionType(whole, [whole]).as_pointer()
            return builder.call(builder.inttoptr(code, kind), [argument])

        return numba.types.int64(hook), generate

    call = numba.extending.intrinsic(typed)
    overload = partial(
        numba.extending.overload, jit_options={"_nrt": False, "no_cfunc_wrapper": True}
    )
    overload(run)(lambda hook: lambda hook: call(hook))  # noqa: PLW0108 - numba wants a function of Python's
    overload(run_at)(lambda hooks, at: lambda hooks, at: call((hooks[at, 0], hooks[at, 1])))
    overload(has)(lambda hook: lambda hook: hook[0] != 0)


def _need_whole_numbers() -> None:
    """Make it an error, as in Python, that NaN or what is too large becomes a whole number.

    LLVM may take any number for it, and leaves out code that would.
    """
    from llvmlite import ir

    numba = _numba()
    real, whole = numba.types.Float, numba.types.Integer

    def cast(context: Any, builder: Any, kind: Any, wanted: Any, value: Any) -> Any:
        limit = 2.0 ** (wanted.bitwidth - wanted.signed)
        least = ir.Constant(value.type, -limit if wanted.signed else 0.0)
        fits = builder.and_(
            builder.fcmp_ordered(">=", value, least),
            builder.fcmp_ordered("<", value, ir.Constant(value.type, limit)),
        )
        with builder.if_then(builder.not_(fits), likely=False):
            context.call_conv.return_user_exc(builder, ValueError, (str(wanted),))
        become = builder.fptosi if wanted.signed else builder.fptoui
        return become(value, context.get_value_type(wanted))

    def rounded(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        nearest = builder.module.declare_intrinsic("llvm.rint", [values[0].type])
        found = builder.call(nearest, values)
        return cast(context, builder, signature.args[0], signature.return_type, found)

    context = import_module("numba.core.registry").cpu_target.target_context
    context.refresh()  # numba's own come before
    context._casts.append(cast, (real, whole))
    numba.extending.lower_builtin(round, real)(rounded)


def _strides_in_a_row(_: Any, builder: Any, kind: Any, array: Any, *new: Any) -> Any:
    """Put down the strides of an array in another shape, for which numba calls C; return 1.

    Raises:
        ValueError: It does not lie row after row. numba itself raises where it has gaps.
    """
    from llvmlite import ir

    if kind.layout != "C":
        raise ValueError("reshape() of an array that is transposed")
    num, shape, strides = new
    stride, pick = array.itemsize, import_module("numba.core.cgutils").gep_inbounds
    for axis in reversed(range(num)):
        builder.store(stride, pick(builder, strides, 0, axis))
        stride = builder.mul(stride, builder.load(pick(builder, shape, 0, axis)))
    return ir.IntType(32)(1)


def _keep_apart(functions: list[Any]) -> None:
    """Let functions of tuples alone stay functions: much work, and mostly called in one place.

    Copied there, as they would be, they make one so large that optimising all takes 1.4 times as
    long, and the result is no faster.
    """
    for function in functions:
        is_copied = "alwaysinline" in function.attributes
        if function.blocks and _OF_TUPLES_ALONE.search(function.name) and not is_copied:
            function.attributes.add("noinline")


def _tell_nobody(functions: list[Any]) -> None:
    """Empty what would tell Python the numbers of an error, of which several modules have one."""
    from llvmlite import ir

    for function in functions:
        if function.name.startswith("__excinfo_unwrap_args"):
            function.blocks.clear()
            block = ir.IRBuilder(function.append_basic_block())
            block.ret(ir.Constant(function.function_type.return_type, None))
            function.linkage = "linkonce_odr"


def _collect(library: Any, libraries: dict[int, Any]) -> None:
    """Add the code of a function, and of all that it calls, each once."""
    if id(library) not in libraries:
        libraries[id(library)] = library
        for called in library._linking_libraries:
            _collect(called, libraries)


def _optimise(llvm: Any, whole: Any) -> None:
    """Optimise all code once, after what numba puts down by the thousand has been cleared away.

    Before that, functions look larger than they are, and too few are copied to where they are
    called. A second round of everything takes 2 s longer, and runs are no faster for it.
    """
    tuning = llvm.create_pipeline_tuning_options(speed_level=3)
    tuning.loop_vectorization = True
    builder = llvm.create_pass_builder(_target(llvm), tuning)
    clearing = llvm.create_new_module_pass_manager()
    clearing.add_always_inliner_pass()
    clearing.add_sroa_pass()
    clearing.add_simplify_cfg_pass()
    clearing.add_instruction_combine_pass()
    clearing.run(whole, builder)
    builder.getModulePassManager().run(whole, builder)


def _cut_off(llvm: Any, whole: Any) -> None:
    """Make code stand alone, where that can be.

    Raises:
        ValueError: It calls what numba has in C, or Python.
    """
    text = "declare void @llvm.trap()\n"
    for value in [*whole.functions, *whole.global_variables]:
        if value.is_declaration and value.name.startswith(_OF_PYTHON):
            if value.name.startswith("NRT_"):
                raise ValueError("it makes a list, a set or a dictionary, or numba does for it")
            if value.name not in _NEVER_CALLED:
                raise ValueError(f"it calls {value.name}, which only numba has")
            text += _NEVER_CALLED[value.name]
    whole.link_in(llvm.parse_assembly(text))


def _emitted(llvm: Any, whole: Any, **model: str) -> bytes:
    code: bytes = _target(llvm, **model).emit_object(whole)
    return code


def _target(llvm: Any, **model: str) -> Any:
    """Return this machine's processor as LLVM knows it."""
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        opt=3,
        **model,
    )


def _linked(code: bytes, names: list[str]) -> bytes | None:
    """Return an object file as a shared library; None where that cannot be had."""
    linker = which("ld") or which("ld.lld")
    if linker is None or sys.platform != "linux":
        return None
    # An OSError, too, if there is no folder for temporary files, or no room there.
    with suppress(OSError, AttributeError), TemporaryDirectory(prefix="specsim-") as folder:
        made, linked = Path(folder, "loops.o"), Path(folder, "loops.so")
        made.write_bytes(code)
        command = [linker, "-shared", "-o", str(linked), str(made)]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            return None
        library = ctypes.CDLL(str(linked))
        for name in names:
            _ = library[name]
        return linked.read_bytes()
    return None


def _lowered(llvm: Any, loop: Loop) -> Any:
    """Return numba's library of a loop, whose entry has the loop's name."""
    numba = _numba()
    function = inner(loop.function)
    handle = _handle(_fields(loop.types))

    def typed(context: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            return builder.bitcast(values[0], context.get_value_type(handle))

        return handle(address), generate

    as_handle = numba.extending.intrinsic(typed)

    def entry(address: Any) -> Any:
        return function(as_handle(address))

    def guarded(address: Any) -> Any:
        arrays = as_handle(address)
        try:
            return function(arrays)
        except Exception:  # machine code knows no more of it
            return run(arrays.has_raised)

    whole = numba.types.int64
    kind, allocates = whole(numba.types.CPointer(whole)), may_allocate(loop.module)
    mark = numba.cfunc(kind, _nrt=allocates, boundscheck=allocates)
    compiled = mark(guarded if "has_raised" in loop.types else entry)
    library, called = compiled._library, compiled.native_name.removeprefix("cfunc.")
    text = _ENTRY.format(name=symbol(loop), called=called)
    library._final_module.link_in(llvm.parse_assembly(text))
    return library


def _fields(types: Types) -> tuple[tuple[str, Any], ...]:
    return tuple((field, _field(kind)) for field, kind in types.items())


def _field(kind: Any) -> Any:
    if kind in (HOOK, HOOKS):
        return kind
    return _fields(kind) if isinstance(kind, Mapping) else (np.dtype(kind[0]), kind[1])


@cache
def _handle(fields: tuple[tuple[str, Any], ...]) -> Any:
    """Return the type of a `NamedTuple` in compiled code: one pointer, not hundreds of values."""
    from numba import extending
    from numba.core.types import Type
    from numba.core.typing.templates import AttributeTemplate

    class Handle(Type):
        pass

    handle = Handle(name=f"arrays_{sha256(repr(fields).encode()).hexdigest()[:12]}")
    extending.register_model(Handle)(extending.models.OpaqueModel)
    found = {field: (3 * number, _type_of(kind)) for number, (field, kind) in enumerate(fields)}

    class Fields(AttributeTemplate):
        key = Handle

        def generic_resolve(self, value: Any, field: str) -> Any:
            return found[field][1] if field in found else None

    def load(context: Any, builder: Any, kind: Any, value: Any, field: str) -> Any:
        return _load(context, builder, value, *found[field])

    extending.infer_getattr(Fields)
    extending.lower_getattr_generic(Handle)(load)
    return handle


def _type_of(kind: Any) -> Any:
    """Return the type of a field in compiled code."""
    if kind == HOOK:
        types = _numba().types
        return types.UniTuple(types.int64, 2)
    if kind == HOOKS:
        return _array(np.int64, 2)
    return _handle(kind) if not kind or isinstance(kind[0], tuple) else _array(*kind)


def _array(dtype: Any, ndim: int) -> Any:
    numba = _numba()
    return numba.types.Array(numba.from_dtype(dtype), ndim, "C")


def _load(context: Any, builder: Any, handle: Any, place: int, kind: Any) -> Any:
    """Return code that loads what lies behind a handle, given its place among the numbers there."""
    from llvmlite import ir

    whole = ir.IntType(64)
    numbers = builder.bitcast(handle, whole.as_pointer())

    def number(offset: int) -> Any:
        found = builder.load(builder.gep(numbers, [ir.Constant(whole, place + offset)]))
        found.set_metadata("invariant.load", builder.module.add_metadata([]))
        return found

    if isinstance(kind, _numba().types.UniTuple):
        return _packed(builder, [number(0), number(1)])
    if not isinstance(kind, _numba().types.Array):
        return builder.inttoptr(number(0), context.get_value_type(kind))
    shape = [number(1 + axis) for axis in range(kind.ndim)]
    size = ir.Constant(whole, context.get_abi_sizeof(context.get_data_type(kind.dtype)))
    values = {
        "data": builder.inttoptr(number(0), context.get_data_type(kind.dtype).as_pointer()),
        "nitems": builder.mul(shape[0], shape[-1]) if kind.ndim > 1 else shape[0],
        "itemsize": size,
        "shape": _packed(builder, shape),
        "strides": _packed(builder, [builder.mul(shape[-1], size), size][-kind.ndim :]),
    }
    model = context.data_model_manager[kind]
    array = ir.Constant(model.get_value_type(), None)
    for name, value in values.items():
        array = builder.insert_value(array, value, model.get_field_position(name))
    return array


def _packed(builder: Any, values: list[Any]) -> Any:
    return import_module("numba.core.cgutils").pack_array(builder, values)


def _main() -> None:
    out, sys.stdout = sys.stdout, sys.stderr  # whatever an import prints does not get in between
    gc.disable()  # a tenth of the time, and all of it ends with the process
    try:
        code = machine_code(loops_of(sys.argv[1]))
    except Exception as error:
        raise SystemExit(_told(error)) from error
    out.buffer.write(sealed(code))


def _told(error: BaseException) -> str:
    """Return in one line what cannot be compiled, and where; numba says it in a hundred.

    It nests: a function of ours has no implementation, since one that it calls has none, and so on
    down to the reason, after which come the places, the innermost first.
    """
    text = _OF_ARRAYS.sub("", str(error)).replace(" found for signature:", "")
    text = text.replace("Cannot determine Numba type of <class 'function'>", "it is not an @inner")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    reasons = [line for line in lines if not _NO_REASON.match(line)]
    place = next((found for found in _PLACE.finditer(text) if not _OURS.search(found[0])), None)
    where = f" ({Path(place[1]).resolve()}, line {place[2]})" if place else ""
    return f"{reasons[0] if reasons else type(error).__name__}{where}"


if __name__ == "__main__":
    _main()
