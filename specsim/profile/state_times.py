"""What layers take that keep a state in place of keys and values: delta nets and Mamba2.

A decode reads and writes the state of each sequence, whatever the length of its context; a prompt
takes as long per token. As measured, or where no table has the kernels, by data sheet.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specsim.core.errors import ProfileError
from specsim.hardware import ModelShape, load_gpu
from specsim.profile.kernel_tables import GpuTables, MeasuredTable, TableOptions, chosen
from specsim.profile.kernel_times import line_of

Values = NDArray[np.float64]

_CHUNK = 256  # tokens that a prompt's scan computes at once, between which it keeps states
_COMPUTE, _MEMORY = 0.7, 0.8  # efficiencies, as a roofline's
_LAUNCH_US, _KERNELS = 1.5, 2  # a convolution, and what updates the state
_BATCHES: Values = np.array([2.0**power for power in range(11)])
_LENS: Values = np.array([2.0**power for power in range(4, 16)])
_SOME_CONTEXTS = np.array([1.0, 2.0])  # which do not matter


class StateTimes:
    """Times of one layer, microseconds.

    Args:
        note: Told of tables and kernels that were used.
    """

    def __init__(
        self,
        shape: ModelShape,
        options: TableOptions,
        tables: GpuTables,
        note: Callable[[str], None],
    ) -> None:
        self._shape, self._options = shape, options
        self._tables, self._note = tables, note
        self._rows: dict[str, Any] | None = self._measured()

    def _measured(self) -> dict[str, Any] | None:
        """Return the rows of both phases, by phase and kernel; None if there are none."""
        shape, size = self._shape, self._options.tensor_parallel_size
        wanted = {
            "num_k_heads": -(-shape.linear_num_key_heads // size),
            "num_v_heads": shape.linear_num_value_heads // size,
            "head_k_dim": shape.linear_key_head_dim,
            "head_v_dim": shape.linear_value_head_dim,
        }
        try:
            if any(each.kind == "mamba" for each in shape.layers):
                raise ProfileError("no table has what updates the states of Mamba2")  # noqa: TRY301
            table = self._tables.table("linear_attention", "gdn_perf")
            rows = MeasuredTable(chosen(table, "delta nets", **wanted), table.source)
        except ProfileError as error:
            self._note(f"layers with a state by roofline ({error})")
            return None
        self._note(table.source)
        return {
            phase: chosen(rows, "delta nets", phase=phase) for phase in ("generation", "context")
        }

    def decodes(self) -> tuple[Values, Values, Values]:
        """Return some contexts, sequences, and the times, which are the same for all contexts."""
        sequences, times = self._line("generation", "batch_size")
        return _SOME_CONTEXTS, sequences, np.stack([times, times])

    def prompts(self) -> tuple[Values, Values]:
        """Return lengths of whole prompts, and what one of each takes."""
        return self._line("context", "seq_len")

    def _line(self, phase: str, axis: str) -> tuple[Values, Values]:
        """Return the sum of the kernels, at what was measured of the one with the fewest points."""
        if self._rows is None:
            return self._by_data_sheet(phase)
        rows = self._rows[phase]
        if axis == "seq_len":
            rows = chosen(MeasuredTable(rows, "prompts"), "delta nets", batch_size=1)
        kernels = sorted(set(rows["kernel_source"].to_pylist()))
        lines = [
            line_of(chosen(MeasuredTable(rows, phase), "delta nets", kernel_source=name), axis)
            for name in kernels
        ]
        at = min((points for points, _ in lines), key=len)
        return at, np.sum([np.interp(at, *line) for line in lines], axis=0)

    def _by_data_sheet(self, phase: str) -> tuple[Values, Values]:
        shape, size = self._shape, self._options.tensor_parallel_size
        gpu = load_gpu(self._options.tables_of or self._options.gpu)
        peak = gpu.peak_tflops.get("bfloat16")
        if gpu.memory_gb_per_s is None or peak is None:
            raise ProfileError(
                f"GPU '{self._options.gpu}' lacks memory_gb_per_s or peak_tflops of bfloat16, by "
                "which layers with a state are reckoned; add them to its file"
            )
        state = shape.state_bytes(size) / shape.state_layers
        heads = shape.linear_num_value_heads / size
        keys, values = shape.linear_key_head_dim, shape.linear_value_head_dim
        if phase == "generation":
            at, moved, operations = _BATCHES, 2 * state, 4.0 * heads * keys * values
        else:
            at = _LENS
            moved = 2 * state / _CHUNK + 4 * shape.convolved / size * shape.bytes_per_weight
            operations = heads * (4.0 * keys * values + _CHUNK * (keys + values))
        each = np.maximum(
            moved / (gpu.memory_gb_per_s * _MEMORY * 1e3), operations / (peak * _COMPUTE * 1e6)
        )
        return at, np.asarray(_KERNELS * _LAUNCH_US + each * at)
