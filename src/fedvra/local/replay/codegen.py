"""Straight-line Python over bound tensors: no interpreter loop, no dictionary, no allocation between the kernels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fedvra.local.replay.record import Call, aten, memory

Product = tuple[Tensor, Tensor, Tensor]
"""A parameter and two factors whose product is its gradient: added by the product itself."""
Plain = tuple[Tensor, Tensor | None]
"""A parameter and its gradient (None: it has none, but still decays)."""

# torch's own bindings cost about 1 us less per call than the generic operator, and take numbers where aten has no out= variant.
_NAMES = ("mm", "addmm", "bmm", "baddbmm", "sum", "add", "sub", "mul", "div", "neg", "where", "gather", "clamp_min")
_BOUND = {name: getattr(torch, name) for name in _NAMES}


def _into(func: Any) -> tuple[Any, list[str]] | None:
    """The overload of func that writes into given tensors, if it has a kernel of its own (not one that computes and copies)."""
    if func.overloadpacket.__name__.endswith("_loss"):  # these use a scalar out as scratch space, and resize it
        return None
    wanted = [(a.name, str(a.type)) for a in func._schema.arguments]
    for name in func.overloadpacket.overloads():
        other = getattr(func.overloadpacket, name)
        arguments = other._schema.arguments
        outs = [a.name for a in arguments if a.is_out]
        if (
            outs
            and torch.Tag.generated not in other.tags
            and [(a.name, str(a.type)) for a in arguments if not a.is_out] == wanted
        ):
            return other, outs
    return None


class Code:
    """Straight-line Python over bound tensors. Memory that a kernel insists on allocating lives in local variables."""

    def __init__(self, views: list[Call]) -> None:
        self.bound: dict[str, Any] = {}
        self.names: dict[int, str] = {}
        self.lines: list[str] = []
        self.views = {id(t): (c, i) for c in views for i, t in enumerate(c.outputs)}
        self.locals: dict[int, str] = {}
        self.moving: set[int] = set()
        self.plain: dict[int, Tensor] = {}

    def line(self, text: str) -> None:
        self.lines.append(text)

    def fresh(self) -> str:
        return f"v{len(self.locals)}_{len(self.lines)}"

    def bind(self, value: Any, stem: str) -> str:
        if id(value) not in self.names:
            self.names[id(value)] = f"{stem}_{len(self.names)}"
            self.bound[self.names[id(value)]] = value
        return self.names[id(value)]

    def name(self, value: Any) -> str:
        if isinstance(value, Tensor):
            if memory(value) in self.moving:
                return self.local(value)
            if value.requires_grad:  # a plain alias, so that the program does not keep the autograd graph
                value = self.plain.setdefault(id(value), value.detach())
            return self.bind(value, "t")
        if isinstance(value, (list, tuple)):
            return "[" + ", ".join(self.name(v) for v in value) + "]"
        if value is None or isinstance(value, (bool, int, str)):
            return repr(value)
        return self.bind(value, "k")

    def local(self, t: Tensor) -> str:
        """The variable of a tensor whose memory moves; views of such memory are taken when first needed."""
        if id(t) not in self.locals:
            call, position = self.views[id(t)]
            if call.func in (aten.detach.default, aten.alias.default):
                self.locals[id(t)] = self.name(call.args[0])
            else:
                text = self.call(call.func._op, call)
                variable = self.fresh()
                self.line(f"{variable} = {text}" + (f"[{position}]" if call.several else ""))
                self.locals[id(t)] = variable
        return self.locals[id(t)]

    def call(self, func: Any, c: Call, extra: Sequence[str] = ()) -> str:
        given = [*(self.name(a) for a in c.args), *(f"{k}={self.name(v)}" for k, v in c.kwargs.items()), *extra]
        return f"{self.bind(func, c.name)}({', '.join(given)})"

    def replay(self, calls: list[Call], wanted: set[int]) -> None:
        """Repeat the calls in order; ``wanted`` is the memory that the update reads afterwards."""
        reads = Counter(m for c in calls for m in c.reads) + Counter(wanted)
        for c in calls:
            into = _into(c.func)
            first: Any = c.outputs[0] if c.outputs else None
            if c.in_place:
                self.line(self.call(c.func._op, c))
                if isinstance(first, Tensor) and memory(first) in self.moving:
                    self.locals.setdefault(id(first), self.name(c.args[0]))
            elif c.name == "relu" and memory(c.args[0]) in self.moving and reads[memory(c.args[0])] == 1:
                source = self.name(c.args[0])  # nobody else reads it: overwrite
                self.line(f"{self.bind(torch.relu_, 'relu_')}({source})")
                self.moving.add(memory(first))
                self.locals[id(first)] = source
            elif c.name == "relu":
                self.line(
                    f"{self.bind(torch.clamp_min, 'clamp_min')}({self.name(c.args[0])}, 0, out={self.name(first)})"
                )
            elif c.name in ("clone", "_to_copy"):
                self.line(f"{self.name(first)}.copy_({self.name(c.args[0])})")
            elif c.name in _BOUND and (into or c.func._overloadname == "Scalar") and not c.several:
                self.line(self.call(_BOUND[c.name], c, [f"out={self.name(first)}"]))
            elif into:
                func, outs = into
                self.line(self.call(func._op, c, [f"{n}={self.name(t)}" for n, t in zip(outs, c.outputs, strict=True)]))
            else:
                self.allocate(c)

    def allocate(self, c: Call) -> None:
        text = self.call(c.func._op, c)
        variables = []
        for position, t in enumerate(c.outputs):
            variable = f"{self.fresh()}_{position}"
            variables.append(variable)
            if isinstance(t, Tensor):
                self.moving.add(memory(t))
                self.locals[id(t)] = variable
        self.line(f"{', '.join(variables)}{',' if c.several and len(variables) == 1 else ''} = {text}")

    def update(self, out: Tensor, products: list[Product], others: list[Plain]) -> None:
        """out <- rho*out + c, then the gradients; without c the products scale what they are added to."""
        o, add = self.name(out), self.bind(torch.add, "add")
        moving = [(w, g) for w, g in others if g is not None]
        scaled = self.name([w for w, _ in others])
        moved, gradients = self.name([w for w, _ in moving]), self.name([g for _, g in moving])
        sums = [
            (self.name(w), self.name(a), self.name(b), "addmm_" if w.ndim == 2 else "baddbmm_") for w, a, b in products
        ]
        if out.ndim == 2:  # a block: coefficients may differ between clients
            self.bound["Tensor"] = Tensor
            self.line("if isinstance(eta, Tensor):")
            self.line("    if c is None:")
            self.line(f"        {o}.mul_(rho[:, None])")
            self.line("    else:")
            self.line(f"        {self.bind(torch.addcmul, 'addcmul')}(c, {o}, rho[:, None], out={o})")
            for w, a, b, product in sums:
                self.line(f"    {w}.{product}({a} * eta[:, None, None], {b}, beta=1.0, alpha=-1.0)")
            for p, g in moving:
                self.line(
                    f"    {self.name(p)}.addcmul_(eta.view(-1{', 1' * (p.ndim - 1)}), {self.name(g)}, value=-1.0)"
                )
            self.line("    return")
        self.line("if c is not None:")
        self.line(f"    {add}(c, {o}, alpha=rho, out={o})")
        self.line("    rho = 1.0")
        for w, a, b, product in sums:
            self.line(f"{w}.{product}({a}, {b}, beta=rho, alpha=-eta)")
        if others:
            self.line("if rho == 0.0:")
            self.line(f"    {self.bind(torch._foreach_zero_, 'zero_')}({scaled})")
            self.line("elif rho != 1.0:")
            self.line(f"    {self.bind(torch._foreach_mul_, 'mul_')}({scaled}, rho)")
        if moved != "[]":
            self.line(f"{self.bind(torch._foreach_add_, 'add_')}({moved}, {gradients}, alpha=-eta)")

    def give(self, gradients: Sequence[Any]) -> None:
        """End by returning the gradients, one per parameter: None, a tensor, or its two factors."""
        self.line(f"return [{', '.join(map(self.name, gradients))}]")

    def source(self, arguments: str = "rho, eta, c") -> str:
        body = "\n".join("        " + line for line in self.lines)
        return f"def bind({', '.join(self.bound)}):\n    def step({arguments}):\n{body}\n    return step\n"

    def function(self, arguments: str = "rho, eta, c") -> Callable[..., Any]:
        scope: dict[str, Any] = {}
        exec(compile(self.source(arguments), "<replay>", "exec"), scope)
        step: Callable[..., Any] = scope["bind"](**self.bound)
        return step
