"""A network made as the settings name it or as a program hands it in, and tried before anything stands on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from movelist.core import by_name
from movelist.core.by_name import HANDED_IN
from movelist.core.errors import SettingsError
from movelist.data.column import Column
from movelist.learn.model import ModelShape, Network, PolicyValueNet


def make_net(shape: ModelShape, *, state_encoder: nn.Module | None = None, network: Network | None = None) -> Network:
    """The network of a shape; what the shape names is imported and built.

    Args:
        shape: The sizes, and the names of parts of one's own.
        state_encoder: The state encoder itself, in place of what the shape names.
        network: The network itself, in place of what the shape names.

    Raises:
        SettingsError: What the shape names cannot be imported or built, or does not give what is asked of it.
    """
    if network is None and shape.network:
        _refuse_handed_in(shape.network, "net")
        maker = by_name.find(shape.network)
        try:
            network = maker(shape)
        except TypeError as error:
            raise SettingsError(
                "the network cannot be made",
                got=error,
                where=shape.network,
                do="It is called with a movelist.ModelShape, then with the keywords of its name; it has `values`.",
            ) from error
        if not isinstance(network, Network):
            got = f"{shape.network} made a {type(network).__name__}"
            raise SettingsError("this is no network", got=got, expected="a movelist.Network")
    if network is not None:
        if type(network).forward is nn.Module.forward:
            got = type(network).__name__
            raise SettingsError("a network has no forward", got=got, do="Write one: docs/extending.md says how.")
        return network
    if state_encoder is None and shape.state_encoder:
        state_encoder = _make_encoder(shape)
    if state_encoder is not None:
        _check_encoder(state_encoder, shape)
    return PolicyValueNet(shape, state_encoder=state_encoder)


def _refuse_handed_in(name: str, keyword: str) -> None:
    if name.startswith(HANDED_IN):
        raise SettingsError(
            "the network has a part that only its own program can make",
            got=name.removeprefix(HANDED_IN),
            do=f"Give it again, in Python: movelist.load(run, {keyword}=...) or movelist.train(resume=run, "
            f"{keyword}=...); a class at the top of a module needs no such thing.",
        )


def _make_encoder(shape: ModelShape) -> nn.Module:
    _refuse_handed_in(shape.state_encoder, "state_encoder")
    maker = by_name.find(shape.state_encoder)
    try:
        made = maker(shape.state_size, shape.hidden_dim)
    except TypeError as error:
        raise SettingsError(
            "the state encoder cannot be made",
            got=error,
            where=shape.state_encoder,
            do="It is called with the width of a state and hidden_dim, then with the keywords of its name.",
        ) from error
    if not isinstance(made, nn.Module):
        got = f"{shape.state_encoder} made a {type(made).__name__}"
        raise SettingsError("this is no state encoder", got=got, expected="a torch.nn.Module")
    return made


@torch.no_grad()
def _check_encoder(encoder: nn.Module, shape: ModelShape) -> None:
    """Ask for two states before anything stands on it."""
    parameter = next(encoder.parameters(), torch.zeros(()))
    training = encoder.training
    try:
        hidden = encoder.eval()(torch.zeros(2, shape.state_size, device=parameter.device))
    except Exception as error:  # whatever somebody's module raises
        got = f"{type(error).__name__}: {error}"
        raise SettingsError("the state encoder fails on two states of zeros", got=got,
                            where=f"{type(encoder).__name__}, states [2, {shape.state_size}]") from error  # fmt: skip
    finally:
        encoder.train(training)
    found = list(hidden.shape) if isinstance(hidden, torch.Tensor) else type(hidden).__name__
    if found != [2, shape.hidden_dim]:
        raise SettingsError("the state encoder gives another size", got=found, expected=[2, shape.hidden_dim],
                            where=type(encoder).__name__, do="It turns [B, S] into [B, hidden_dim].")  # fmt: skip


def try_out(net: Network, columns: Mapping[Column, int]) -> None:
    """Have a network of one's own look at two states of zeros with lists of two and of three actions.

    Args:
        net: On its device.
        columns: What will be told beside the states, with the widths.

    Raises:
        SettingsError: It fails, or gives other sizes.
    """
    device = next(net.parameters()).device
    state_BS = torch.zeros(2, net.shape.state_size, device=device)
    step_A = torch.tensor([0, 0, 1, 1, 1], device=device)
    unique_A = torch.tensor([0, 1, 1, 0, 1], device=device)
    id_U = torch.arange(2, device=device) % max(1, net.shape.num_actions or 2)
    rows = {"step": 2, "action": 5}
    told = {
        column.label: torch.zeros(rows[column.per], width, device=device)
        for column, width in columns.items()
        if column.label in net.column_names and column.per in rows
    }
    _hold(net, "values", lambda: [net.values(state_BS)], [[2]])
    if len(told) == len(net.column_names):  # else it is told later that one is missing
        _hold(net, "forward", lambda: net(state_BS, net.encode_ids(id_U), step_A, unique_A, None, **told), [[5], [2]])


@torch.no_grad()
def _hold(net: Network, method: str, call: Callable[[], Any], expected: list[list[int]]) -> None:
    """Hold what a method of a network gives against the sizes that it has to have."""
    training = net.training
    net.eval()  # so that nothing is drawn, as in dropout
    try:
        found = [list(part.shape) for part in call()]
    except Exception as error:  # whatever somebody's module raises
        raise SettingsError(
            f"the network's {method} fails on two states of zeros",
            got=f"{type(error).__name__}: {error}",
            where=f"{type(net).__name__}, states [2, {net.shape.state_size}], lists of 2 and 3 actions",
        ) from error
    finally:
        net.train(training)
    if found != expected:
        raise SettingsError(
            f"the network's {method} gives other sizes",
            got=found,
            expected=expected,
            where=f"{type(net).__name__}, 2 states, 5 actions",
            do="docs/extending.md says what it has to return.",
        )
