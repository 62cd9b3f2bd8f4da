"""This rank's place in the mesh, and the groups it talks in.

    rank = ((stage * data + replica) * sequence + slice) * tensor + shard        (bloomery/config/parallel.py)

`Peers` is one axis as a rank sees it. An axis of one rank has no group; what goes over it is the identity.
DeepSpeed is told the same by its own objects: a grid of pipeline, data and tensor, or the state of Ulysses.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import distributed

from bloomery.config.parallel import ParallelConfig


class Peers(NamedTuple):
    """One axis of the mesh."""

    rank: int = 0
    size: int = 1
    group: Any = None

    def share(self, count: int) -> tuple[int, int]:
        """Which of `count` things are this rank's: [first, last)."""
        return count * self.rank // self.size, count * (self.rank + 1) // self.size


class Mesh(NamedTuple):
    """The axes."""

    data: Peers = Peers()
    tensor: Peers = Peers()
    pipeline: Peers = Peers()
    sequence: Peers = Peers()
    expert: Peers = Peers()
    replicas: Any = None
    """Group of the ranks that have the same weights, for other rows or another part of them."""
    tied: Any = None
    """Group of the first and the last stage, which both hold a tied embedding; None elsewhere."""
    mpu: Any = None
    """What DeepSpeed is told."""

    @property
    def first(self) -> bool:
        """Whether this rank has the first stage."""
        return self.pipeline.rank == 0

    @property
    def last(self) -> bool:
        """Whether this rank has the last stage."""
        return self.pipeline.rank == self.pipeline.size - 1

    @property
    def speaks(self) -> bool:
        """Whether this rank is the one of its replica that counts rows and targets."""
        return not (self.tensor.rank or self.pipeline.rank or self.sequence.rank)

    @classmethod
    def of(cls, parallel: ParallelConfig) -> Mesh:
        """The mesh of the running process group; every rank calls it.

        Raises:
            ValueError: the group has another number of ranks.
        """
        rank, ranks = distributed.get_rank(), distributed.get_world_size()
        if ranks != parallel.ranks:
            raise ValueError(f"the mesh is of {parallel.ranks} ranks, {ranks} run")
        if parallel.sequence > 1:
            return _ulysses(parallel, rank)
        if parallel.tensor > 1 or parallel.pipeline > 1:
            return _grid(parallel)
        expert = Peers(rank % parallel.expert, parallel.expert)
        if parallel.expert > 1:
            from deepspeed.utils import groups

            groups._create_expert_and_data_parallel(parallel.expert)
            expert = expert._replace(group=groups._get_expert_parallel_group(expert_group(parallel.expert)))
        return cls(Peers(rank, ranks), expert=expert, replicas=distributed.group.WORLD)


def expert_group(size: int) -> str:
    """DeepSpeed's name of the groups of that many ranks that share experts."""
    return f"ep_size_{size}"


def _grid(parallel: ParallelConfig) -> Mesh:
    from deepspeed.runtime.pipe.topology import PipelineParallelGrid, PipeModelDataParallelTopology

    topology = PipeModelDataParallelTopology(
        num_pp=parallel.pipeline, num_mp=parallel.tensor, num_dp=parallel.data
    )
    grid = PipelineParallelGrid(topology=topology)
    tied = None
    for line in topology.get_axis_comm_lists("pipe") if parallel.pipeline > 1 else ():
        ends = [line[0], line[-1]]
        group = distributed.new_group(ends)
        if distributed.get_rank() in ends:
            tied = group
    return Mesh(
        data=Peers(grid.data_parallel_id, parallel.data),
        tensor=Peers(grid.get_slice_parallel_rank(), parallel.tensor, grid.slice_proc_group),
        pipeline=Peers(grid.stage_id, parallel.pipeline, grid.pp_proc_group),
        replicas=grid.dp_proc_group,
        tied=tied,
        mpu=grid,
    )


def _ulysses(parallel: ParallelConfig, rank: int) -> Mesh:
    from deepspeed.runtime.sequence_parallel import parallel_state_sp as state

    state.initialize_sequence_parallel(parallel.sequence)
    return Mesh(
        data=Peers(rank // parallel.sequence, parallel.data),
        sequence=Peers(rank % parallel.sequence, parallel.sequence, state.get_sequence_parallel_group()),
        replicas=state.get_sequence_data_parallel_group(),
        mpu=state,
    )
