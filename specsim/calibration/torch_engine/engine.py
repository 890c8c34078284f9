"""TorchEngine: a model in memory that can be profiled and can serve experiments."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from specsim.calibration.grid import GridPoint, Sample
from specsim.calibration.torch_engine.model import Llama
from specsim.calibration.torch_engine.runner import Runner
from specsim.calibration.torch_engine.server import Served, Server
from specsim.calibration.torch_engine.steps import measure
from specsim.calibration.torch_engine.weights import draft_of, random_weights
from specsim.deployment import Deployment
from specsim.drafting import Drafting
from specsim.experiment import Experiment
from specsim.hardware import ModelShape
from specsim.profile import Profile
from specsim.request import Request
from specsim.rng import generator

__all__ = ["Limits", "TorchEngine"]


@dataclass(frozen=True)
class Limits:
    """What the KV caches have room for."""

    max_num_seqs: int
    max_model_len: int
    max_draft_len: int

    @property
    def slot_len(self) -> int:
        """Length of a sequence's row, tokens: its text, and drafts beyond its end."""
        return self.max_model_len + 2 * self.max_draft_len + 1


class TorchEngine:
    """A target and a draft model on one device, with room for a number of sequences.

    Parameters
    ----------
    shape : ModelShape
    device : torch.device
    dtype : torch.dtype
    limits : Limits
    seed : int
        Of the weights and prompts.
    num_draft_layers : int
        Layers of the draft model, the target's first.
    deep_scale : float
        How much the layers after them write, as a factor; see `random_weights`.
    """

    def __init__(
        self,
        shape: ModelShape,
        device: torch.device,
        dtype: torch.dtype,
        limits: Limits,
        *,
        seed: int = 0,
        num_draft_layers: int = 2,
        deep_scale: float = 0.15,
    ) -> None:
        self.shape, self.device, self.limits = shape, device, limits
        self._seed = seed
        weights = random_weights(
            shape,
            device=device,
            dtype=dtype,
            seed=seed,
            num_draft_layers=num_draft_layers,
            deep_scale=deep_scale,
        )
        room = {"num_slots": limits.max_num_seqs, "slot_len": limits.slot_len}
        self.target = Llama(shape, weights, **room)
        self.draft = Llama(shape, draft_of(weights, num_draft_layers), **room)

    def prompt(self, request: Request) -> NDArray[np.int64]:
        """Return the prompt of a request: as recorded, or random tokens of its own."""
        if request.prompt_token_ids is not None:
            return request.prompt_token_ids
        rng = generator(self._seed, "prompt", str(request.index))
        return rng.integers(0, self.shape.vocab_size, request.prompt_len)

    def serve(
        self,
        experiment: Experiment,
        profile: Profile,
        requests: list[Request],
        *,
        is_synthetic: bool,
    ) -> Served:
        """Serve what `specsim.simulate.simulate` simulates, from the same arguments.

        Parameters
        ----------
        experiment : Experiment
            One replica, synchronous, method ``draft_model`` or none.
        profile : Profile
            What a policy takes for the cost of a step.
        requests : list of Request
            In order of arrival.
        is_synthetic : bool
            Whether drafts are accepted as ``experiment.acceptance`` says: by the same luck as in a
            simulation of the same seed. Otherwise as the target says.

        Returns
        -------
        Served
        """
        deployment = Deployment.of(experiment, profile)
        speculates = deployment.proposer is not None
        server = Server(
            self._runner(),
            deployment.make_scheduler(),
            Drafting(experiment, deployment, requests).start(0),
            speculates=speculates,
            is_synthetic=is_synthetic,
        )
        return server.serve(requests, self.prompt)

    def measure(self, points: Iterable[GridPoint]) -> Iterator[Sample]:
        """Run steps of given sizes, one after the other, and time them.

        Parameters
        ----------
        points : iterable of GridPoint

        Yields
        ------
        Sample
        """
        runner = self._runner()
        for point in points:
            yield measure(runner, point, self.shape.vocab_size)

    def _runner(self) -> Runner:
        return Runner(
            self.target,
            self.draft,
            num_slots=self.limits.max_num_seqs,
            slot_len=self.limits.slot_len,
        )
