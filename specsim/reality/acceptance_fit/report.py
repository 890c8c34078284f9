"""What a study is written down as: JSON with everything, or a file that ships as a preset."""

from dataclasses import asdict, dataclass
from typing import Any

from specsim.acceptance.base import Acceptance
from specsim.acceptance.preset import AcceptanceFile, Provenance, Validation
from specsim.reality.acceptance_fit.distance import Distances
from specsim.reality.acceptance_fit.records import Records
from specsim.reality.acceptance_fit.study import Study

__all__ = ["FitRun", "fields"]


@dataclass(frozen=True)
class FitRun:
    """A study, with what it was asked and what was read."""

    proposer: str
    draft_len: int
    max_output_len: int
    split_seed: int
    records: Records
    study: Study

    @property
    def file(self) -> str:
        """Name of the token trace, without its folder."""
        return self.records.file.name

    @property
    def command(self) -> str:
        """The command that does it again."""
        return (
            f"specsim acceptance fit {self.file} --proposer {self.proposer} --k {self.draft_len} "
            f"--max-output-len {self.max_output_len} --split-seed {self.split_seed} "
            f"--kind {self.study.chosen_kind}"
        )

    @property
    def left_out(self) -> str:
        """Which requests were left out, for a reader."""
        return (
            f"{self.records.num_too_long} requests of more than {self.max_output_len} output "
            f"tokens and {self.records.num_too_short} of fewer than 2 left out"
        )

    def as_json(self) -> dict[str, Any]:
        """Return everything as plain values."""
        study = self.study
        return {
            "file": self.file,
            "proposer": self.proposer,
            "k": self.draft_len,
            "max_output_len": self.max_output_len,
            "split_seed": self.split_seed,
            "num_requests": len(self.records.tables),
            "num_too_long": self.records.num_too_long,
            "num_too_short": self.records.num_too_short,
            "num_fitted": study.num_fitted,
            "num_held_out": study.num_held_out,
            "halves": asdict(study.halves),
            "models": {
                kind: {"acceptance": fields(each.model), "held_out": asdict(each.held_out)}
                for kind, each in study.candidates.items()
            },
            "best": study.best,
            "acceptance": fields(study.chosen),
        }

    def as_preset(self, source: str) -> AcceptanceFile:
        """Return the chosen model as a file below profiles/acceptance.

        Args:
            source: Where the token trace comes from.
        """
        study = self.study
        candidate = study.candidates[study.chosen_kind]
        provenance = Provenance(
            source=source,
            fitted_to=(
                f"acc_{self.proposer} of all {len(self.records.tables)} requests in {self.file}, "
                f"drafts of {self.draft_len} tokens; {self.left_out}"
            ),
            command=self.command,
        )
        validation = Validation(
            acceptance=candidate.model,
            split_seed=self.split_seed,
            num_fitted=study.num_fitted,
            num_held_out=study.num_held_out,
            held_out=_digits(candidate.held_out),
            halves=_digits(study.halves),
        )
        return AcceptanceFile(acceptance=study.chosen, provenance=provenance, validation=validation)


def fields(model: Acceptance) -> dict[str, Any]:
    """Return a model as it is written into an experiment."""
    return {"kind": model.kind, **model.model_dump(mode="json", exclude_defaults=True)}


def _digits(distances: Distances) -> dict[str, float]:
    return {name: round(value, 4) for name, value in asdict(distances).items()}
