"""Translate PTX, as NVRTC writes it, into C++ that runs a grid on one CPU thread.

Every register becomes an unsigned variable that holds its bits, every instruction one statement,
every label a label; kernel.h has the arithmetic and the scheduler. Unknown instructions raise
Untranslatable; nothing is guessed.

Not supported: half2 and bfloat16 arithmetic, textures, tensor cores, clusters, mbarrier, barriers
other than number 0, calls, variables outside of kernels, local memory, instructions that no kernel
uses.

Usage: ptx_to_cpp.py INPUT.ptx OUTPUT.cpp
"""

import math
import re
import sys
from dataclasses import dataclass
from pathlib import Path

WIDTH = {f"{kind}{bits}": bits for kind in "bus" for bits in (8, 16, 32, 64)}
WIDTH |= {"pred": 1, "f16": 16, "f32": 32, "f64": 64}
ROUNDINGS = {"rz": "FE_TOWARDZERO", "rm": "FE_DOWNWARD", "rp": "FE_UPWARD"}
COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
SPECIAL = {
    **{f"%tid.{a}": f"thread.{a}" for a in "xyz"},
    **{f"%ntid.{a}": f"launch.block_{a}" for a in "xyz"},
    **{f"%ctaid.{a}": f"block.{a}" for a in "xyz"},
    **{f"%nctaid.{a}": f"launch.grid_{a}" for a in "xyz"},
}
SIGNATURE = "Launch& launch, Block& block, Thread& thread, char* params, char* shared"
FLOATS = {
    **{"add": "({} + {})", "sub": "({} - {})", "mul": "({} * {})", "div": "({} / {})"},
    **{"neg": "(-{})", "abs": "std::fabs({})", "rcp": "op_rcp({})", "ex2": "op_ex2({})"},
    **{"min": "min_number({}, {})", "max": "max_number({}, {})"},
}
"""Expressions for operands of a floating-point type."""

INTEGERS = {
    **{"and": "({} & {})", "or": "({} | {})", "xor": "({} ^ {})", "not": "~{}"},
    **{"div": "op_div<{type}>({}, {})", "rem": "op_rem<{type}>({}, {})"},
    **{"min": "min_of<{type}>({}, {})", "max": "max_of<{type}>({}, {})"},
}
PREDICATES = {
    "and": "({} & {}) != 0",
    "or": "({} | {}) != 0",
    "xor": "({} ^ {}) != 0",
    "not": "!{}",
}
UNSIGNED = {
    **{"add": "({} + {})", "sub": "({} - {})", "neg": "(0 - {})"},
    **{"clz": "op_clz({})", "popc": "op_popc({})", "brev": "op_brev({})"},
}
"""Expressions for operands that are read as unsigned."""

IGNORED_DIRECTIVES = (".loc", ".pragma", ".file", ".callprototype", ".maxntid", ".minnctapersm")
IGNORED_INSTRUCTIONS = ("membar", "fence", "prefetch", "nanosleep", "discard")


class Untranslatable(Exception):
    """PTX that this translator does not support."""


@dataclass
class Instruction:
    """``name.modifier.type operand, operand``."""

    text: str
    name: str
    modifiers: list[str]
    operands: list[str]

    @property
    def type(self) -> str:
        return self.modifiers[-1] if self.modifiers else ""

    @property
    def flushes(self) -> bool:
        return "ftz" in self.modifiers

    def one_of(self, *names: str) -> str | None:
        return next((m for m in self.modifiers if m in names), None)


def cpp_type(of: str) -> str:
    if of == "pred":
        return "bool"
    if of[0] == "f":
        return {"f16": "h16", "f32": "float", "f64": "double"}[of]
    return f"{'s' if of[0] == 's' else 'u'}{WIDTH[of]}"


def unsigned(of: str) -> str:
    return f"u{WIDTH[of]}"


def integer(of: str) -> str:
    """The type itself, or the unsigned one for untyped bits."""
    return f"u{of[1:]}" if of[0] == "b" else of


def identifier(name: str) -> str:
    return re.sub(r"\W", "_", name)


def label(name: str) -> str:
    return f"L_{identifier(name)}"


def split(text: str) -> list[str]:
    """Operands, split at the commas outside of brackets."""
    parts, depth, part = [], 0, ""
    for character in text:
        depth += (character in "{[(") - (character in "}])")
        if character == "," and depth == 0:
            parts.append(part.strip())
            part = ""
        else:
            part += character
    return parts + [part.strip()] * bool(part.strip())


def listed(operand: str) -> list[str]:
    """``{a, b}`` as a list, ``a`` as a list of one."""
    return split(operand[1:-1]) if operand[0] == "{" else [operand]


def translate(text: str) -> str:
    """Translate a PTX file: a C++ function per kernel, and the table that the driver reads."""
    text = re.sub(r"/\*.*?\*/", "", re.sub(r"//[^\n]*", "", text), flags=re.S)
    entry = r"\.entry\s+([\w$]+)\s*\((.*?)\)[^{;]*\{\n(.*?)^\}"
    # Shared memory of a device function that several kernels inline is declared before them all.
    common = re.findall(r"^(\.shared [^;]* ([\w$]+)\[\d+\];)", text, re.M)
    kernels = [
        Kernel(name, given, "".join(line for line, part in common if part in body) + body)
        for name, given, body in re.findall(entry, text, re.M | re.S)
    ]
    functions = [line for kernel in kernels for line in kernel.function()]
    arrays, rows = [], []
    for kernel in kernels:
        name = identifier(kernel.name)
        for what, values in (
            ("sizes", [size for _, _, size in kernel.parameters]),
            ("offsets", [offset for _, offset, _ in kernel.parameters]),
        ):
            numbers = ", ".join(map(str, values)) or "0"
            arrays.append(f"static const unsigned {what}_{name}[] = {{{numbers}}};")
        rows.append(
            f'{{"{kernel.name}", {len(kernel.parameters)}, sizes_{name}, offsets_{name}, '
            f"{kernel.parameter_bytes}, {kernel.shared_bytes}, {int(kernel.meets)}, K_{name}}},"
        )
    end = "{nullptr, 0, nullptr, nullptr, 0, 0, 0, nullptr}"
    table = ['extern "C" const KernelInfo emu_kernels[] = {', *rows, f"{end}}};"]
    return "\n".join(['#include "kernel.h"', *functions, *arrays, *table, ""])


class Kernel:
    """A kernel; its device functions are inlined."""

    def __init__(self, name: str, parameters: str, body: str):
        self.name, self.body = name, body
        self.parameters, self.parameter_bytes = self.laid_out(parameters)
        self.offsets = {name: offset for name, offset, _ in self.parameters}
        self.registers: dict[str, tuple[str, int]] = {}
        self.declared: list[str] = []
        self.shared: dict[str, int] = {}
        self.shared_bytes = 0
        self.meets = False

    @staticmethod
    def laid_out(text: str) -> tuple[list[tuple[str, int, int]], int]:
        """Name, offset and size of each parameter, and their total size."""
        found, offset = [], 0
        for part in split(text):
            match = re.match(
                r"\.param\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+"
                r"(?:\.ptr\s*(?:\.\w+\s+)*(?:\.align\s+\d+\s+)?)?([\w$]+)(?:\[(\d+)\])?",
                part,
            )
            if not match:
                raise Untranslatable(f"parameter {part}")
            align, of, name, count = match.groups()
            size = WIDTH[of] // 8 * int(count or 1)
            step = int(align or WIDTH[of] // 8)
            offset = -(-offset // step) * step
            found.append((name, offset, size))
            offset += size
        return found, offset

    def refuse(self, i: Instruction, *modifiers: str) -> None:
        """Refuse an instruction that has one of the modifiers; without any given, always."""
        if not modifiers or i.one_of(*modifiers):
            raise Untranslatable(f"{self.name}: {i.text}")

    # Operands

    def raw(self, operand: str) -> str:
        """An operand's bits as an unsigned expression."""
        if operand in self.registers:
            return f"r{self.registers[operand][1]}"
        if operand in SPECIAL:
            return SPECIAL[operand]
        if re.match(r"-?\d+U?$", operand):
            number = operand.rstrip("U")
            fits = abs(int(number)) < 2**63 and number == operand
            return f"({number}{'ll' if fits else 'ull'})"
        if operand.startswith("0f"):
            return f"(0x{operand[2:]}u)"
        if operand.startswith("0d"):
            return f"(0x{operand[2:]}ull)"
        if re.match(r"-?0[xX][0-9a-fA-F]+U?$", operand):
            return f"({operand.rstrip('U')}ull)"
        if operand in self.shared:
            return f"((u64){self.shared[operand]}u)"
        if operand in self.offsets:
            return f"((u64)(size_t)(params + {self.offsets[operand]}))"
        raise Untranslatable(f"operand {operand}")

    def read(self, operand: str, of: str) -> str:
        """An operand as an expression of a type."""
        if of == "pred":
            return {"0": "false", "1": "true"}.get(operand) or f"((bool){self.raw(operand)})"
        if of[0] == "f":
            return f"as_{of}(({unsigned(of)}){self.raw(operand)})"
        return f"(({cpp_type(of)}){self.raw(operand)})"

    def write(self, to: str, of: str, expression: str) -> str:
        """Statement that assigns an expression of a type."""
        register, number = self.registers[to]
        if "pred" in (of, register):
            return f"r{number} = ({expression});"
        if of[0] == "f":
            return f"r{number} = bits({cpp_type(of)}({expression}));"
        width = WIDTH[register]
        if width > WIDTH[of]:
            sign = "s" if of[0] == "s" else "u"
            return f"r{number} = (u{width})({sign}{width})({cpp_type(of)})({expression});"
        return f"r{number} = (u{width})({cpp_type(of)})({expression});"

    def read_float(self, i: Instruction, operand: str, of: str) -> str:
        value = self.read(operand, of)
        return f"flush({value})" if i.flushes and of == "f32" else value

    def write_float(self, i: Instruction, expression: str, of: str | None = None) -> str:
        of = of or i.type
        if "sat" in i.modifiers:
            expression = f"saturate({expression})"
        if i.flushes and of == "f32":
            expression = f"flush({expression})"
        return self.write(i.operands[0], of, expression)

    def floats(self, i: Instruction) -> list[str]:
        return [self.read_float(i, x, i.type) for x in i.operands[1:]]

    def values(self, i: Instruction, of: str | None = None) -> list[str]:
        return [self.read(x, of or i.type) for x in i.operands[1:]]

    def at(self, i: Instruction, operand: str, size: int, work: str) -> str:
        """Block of statements that use ``p``, a checked address."""
        found = re.match(r"\[\s*([%\w$.]+)\s*(?:\+\s*(-?\w+))?\s*\]$", operand)
        if not found:
            raise Untranslatable(f"address {operand}")
        pointer, check = f"{self.raw(found[1])} + ({found[2] or 0})", ""
        if i.one_of("shared", "shared_cta"):
            pointer = f"(shared + (u32)({pointer}))"
            check = f"check_shared(p, {size}, shared, launch);"
        else:
            pointer = f"((char*)(size_t)({pointer}))"
            if i.one_of("global") or i.name == "atom":
                check = f"check_global(p, {size});"
        return f"{{ char* p = {pointer}; {check} {work} }}"

    # The body

    def function(self) -> list[str]:
        """Lines of the function that runs one thread."""
        code, scopes = [], []
        for kind, text in self.statements():
            if kind == "label":
                code.append(f"{label(text)}:;")
            elif text == "{":
                scopes.append(dict(self.registers))
            elif text == "}":
                self.registers = scopes.pop()
            elif statement := self.statement(text.rstrip(";").strip()):
                code.append(statement)
        declarations = [
            f"{cpp_type(unsigned(t)) if t != 'pred' else 'bool'} r{n} = 0;"
            for n, t in enumerate(self.declared)
        ]
        head = f"static void K_{identifier(self.name)}({SIGNATURE}) {{"
        return [head, *declarations, *code, "}"]

    def statements(self):
        """Labels, braces and statements in order."""
        pattern = r"[$\w]+:(?!:)|\{[^{};]*\}[^;{}]*;|[{}]|[^;{}]*(?:\{[^{};]*\}[^;{}]*)*;"
        for part in re.findall(pattern, self.body):
            part = part.strip()
            while found := re.match(r"([$\w%.]+):\s*", part):
                if part.startswith("."):
                    break
                yield "label", found[1]
                part = part[found.end() :]
            if part and part != ";":
                yield "statement", part

    def statement(self, text: str) -> str:
        if text.startswith("."):
            return self.directive(text)
        guard = ""
        if found := re.match(r"@(!?)(%\w+)\s+(.*)$", text, re.S):
            guard, text = f"if ({found[1]}{self.raw(found[2])}) ", found[3]
        found = re.match(r"([a-z][\w.:]*)\s*(.*)$", text, re.S)
        if not found:
            raise Untranslatable(f"{self.name}: {text}")
        name, *modifiers = found[1].replace("::", "_").split(".")
        i = Instruction(text, name, modifiers, split(found[2]))
        try:
            statement = self.instruction(i)
        except (AssertionError, AttributeError, IndexError, KeyError, ValueError) as error:
            raise Untranslatable(f"{self.name}: {text} ({error!r})") from error
        return f"{guard}{{ {statement} }}" if guard else statement

    def directive(self, text: str) -> str:
        if found := re.match(r"\.reg\s+\.(\w+)\s+(.*)", text, re.S):
            for names in split(found[2]):
                many = re.match(r"(%\w+)<(\d+)>$", names)
                listed = [f"{many[1]}{k}" for k in range(int(many[2]))] if many else [names]
                for name in listed:
                    self.registers[name] = (found[1], len(self.declared))
                    self.declared.append(found[1])
        elif found := re.match(
            r"\.shared\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+([\w$]+)((?:\[\d*\])*)", text
        ):
            align, of, name, dimensions = found.groups()
            count = math.prod(map(int, re.findall(r"\d+", dimensions)))
            self.shared[name] = -(-self.shared_bytes // int(align or 8)) * int(align or 8)
            self.shared_bytes = self.shared[name] + count * WIDTH[of] // 8
        elif not text.startswith(IGNORED_DIRECTIVES):
            raise Untranslatable(f"directive {text}")
        return ""

    # Instructions

    def instruction(self, i: Instruction) -> str:
        if i.name in IGNORED_INSTRUCTIONS:
            return ""
        if i.type in ("f16", "f32", "f64"):
            if i.name in FLOATS:
                self.refuse(i, *ROUNDINGS, "NaN")
                return self.write_float(i, FLOATS[i.name].format(*self.floats(i)))
        elif expression := (PREDICATES if i.type == "pred" else INTEGERS).get(i.name):
            value = expression.format(*self.values(i), type=cpp_type(i.type))
            return self.write(i.operands[0], i.type, value)
        elif expression := UNSIGNED.get(i.name):
            self.refuse(i, "sat", "cc")
            value = expression.format(*self.values(i, unsigned(i.type)))
            of = "u32" if i.name in ("clz", "popc") else i.type
            return self.write(i.operands[0], of, value)
        handler = getattr(self, f"do_{i.name}", None)
        if handler is None:
            raise Untranslatable(f"{self.name}: {i.text}")
        return handler(i)

    def do_bra(self, i):
        return f"goto {label(i.operands[0])};"

    def do_ret(self, i):
        return "return;"

    def do_mov(self, i):
        to, source = i.operands
        whole = unsigned(i.type) if i.type != "pred" else "pred"
        if to[0] == "{":
            parts = listed(to)
            width = WIDTH[i.type] // len(parts)
            return " ".join(
                self.write(part, f"u{width}", f"{self.read(source, whole)} >> {n * width}")
                for n, part in enumerate(parts)
            )
        if source[0] == "{":
            parts = listed(source)
            width = WIDTH[i.type] // len(parts)
            joined = " | ".join(
                f"(({whole}){self.read(part, f'u{width}')} << {n * width})"
                for n, part in enumerate(parts)
            )
            return self.write(to, whole, joined)
        return self.write(to, whole, self.read(source, whole))

    def do_ld(self, i):
        to, width = listed(i.operands[0]), WIDTH[i.type] // 8
        of = i.type if i.type[0] == "s" else unsigned(i.type)
        loads = " ".join(
            self.write(x, of, f"load<{cpp_type(of)}>(p + {n * width})") for n, x in enumerate(to)
        )
        return self.at(i, i.operands[1], width * len(to), loads)

    def do_st(self, i):
        values, width = listed(i.operands[1]), WIDTH[i.type] // 8
        of = unsigned(i.type)
        stores = " ".join(
            f"store<{of}>(p + {n * width}, {self.read(x, of)});" for n, x in enumerate(values)
        )
        return self.at(i, i.operands[0], width * len(values), stores)

    def do_cvta(self, i):
        if "global" not in i.modifiers:
            self.refuse(i)
        return self.write(i.operands[0], "u64", self.read(i.operands[1], "u64"))

    def do_atom(self, i):
        to, address, *values = i.operands
        kind, of = i.one_of("add", "min"), integer(i.type)
        given = ", ".join(self.read(x, of) for x in values)
        update = self.write(to, of, f"atomic_{kind}<{cpp_type(of)}>(p, {given})")
        return self.at(i, address, WIDTH[of] // 8, update)

    # Arithmetic

    def do_fma(self, i):
        values = ", ".join(self.floats(i))
        mode = ROUNDINGS.get(i.one_of(*ROUNDINGS))
        call = f"fused_rounded({mode}, {values})" if mode else f"fused({values})"
        return self.write_float(i, call)

    def do_mul(self, i):
        to, x, y, *added = i.operands
        width = WIDTH[i.type]
        of = unsigned(i.type)
        if "wide" in i.modifiers and not added:
            wide = f"{integer(i.type)[0]}{2 * width}"
            value = f"(({wide}){self.read(x, i.type)} * ({wide}){self.read(y, i.type)})"
            return self.write(to, wide, value)
        if "lo" not in i.modifiers:
            self.refuse(i)
        value = f"({of})((u64){self.read(x, of)} * (u64){self.read(y, of)})"
        if added:
            value = f"({value} + {self.read(added[0], of)})"
        return self.write(to, of, value)

    do_mad = do_mul

    def do_shl(self, i):
        width = WIDTH[i.type]
        of = unsigned(i.type) if i.name == "shl" else integer(i.type)
        value, by = self.read(i.operands[1], of), self.read(i.operands[2], "u32")
        far = f"({value} >> {width - 1})" if of[0] == "s" else "0"
        moved = f"({value} {'<<' if i.name == 'shl' else '>>'} ({by} & {width - 1}))"
        return self.write(i.operands[0], of, f"({by} >= {width} ? {far} : {moved})")

    do_shr = do_shl

    # Choice, comparison, conversion

    def do_selp(self, i):
        of = unsigned(i.type)
        yes, no = (self.read(x, of) for x in i.operands[1:3])
        chosen = f"({self.read(i.operands[3], 'pred')} ? {yes} : {no})"
        return self.write(i.operands[0], of, chosen)

    def comparison(self, i, of: str) -> str:
        name = i.modifiers[0]
        if of[0] != "f":
            x, y = (self.read(operand, integer(of)) for operand in i.operands[1:3])
            return f"({x} {COMPARISONS[name]} {y})"
        x, y = (self.read_float(i, operand, of) for operand in i.operands[1:3])
        unordered = f"(is_nan({x}) || is_nan({y}))"
        if name == "nan":
            return unordered
        if name == "ne":
            return f"({x} != {y} && !{unordered})"
        if name in COMPARISONS:
            return f"({x} {COMPARISONS[name]} {y})"
        return f"({x} {COMPARISONS[name[:-1]]} {y} || {unordered})"

    def do_setp(self, i):
        self.refuse(i, "and", "or", "xor")
        assigned = ""
        for value, to in zip(("v", "!v"), i.operands[0].split("|"), strict=False):
            if to.strip() != "_":
                assigned += self.write(to.strip(), "pred", value)
        return f"{{ bool v = {self.comparison(i, i.type)}; {assigned} }}"

    def do_cvt(self, i):
        to, source = i.modifiers[-2], i.modifiers[-1]
        rounding = i.one_of("rn", "rz", "rm", "rp", "rni", "rzi", "rmi", "rpi") or "rn"
        value = self.read_float(i, i.operands[1], source)
        if rounding in ("rz", "rm", "rp") or ("sat" in i.modifiers and to[0] != "f"):
            self.refuse(i)
        if to[0] == "f":
            if source[0] == "f" and rounding.endswith("i"):
                value = f"to_integral_{rounding}({value})"
            return self.write_float(i, f"({cpp_type(to)})({value})", to)
        if source[0] == "f":
            whole = f"to_integral_{rounding}({value})"
            return self.write(i.operands[0], to, f"float_to_int<{cpp_type(to)}>({whole})")
        return self.write(i.operands[0], to, value)

    # Synchronization of threads

    def do_bar(self, i):
        self.meets = True
        if "warp" in i.modifiers:
            return "warp_barrier(thread);"
        reduces = "red" in i.modifiers
        number, *rest = i.operands[1:] if reduces else i.operands
        if number != "0" or len(rest) != reduces or i.one_of("popc", "and"):
            self.refuse(i)
        if not reduces:
            return "barrier(false);"
        value = self.read(i.operands[-1], "pred")
        return self.write(i.operands[0], "pred", f"barrier({value}) != 0")

    do_barrier = do_bar

    def do_shfl(self, i):
        self.meets = True
        mode = i.one_of("up", "down", "bfly", "idx")
        kind = {"up": "UP", "down": "DOWN", "bfly": "BUTTERFLY", "idx": "INDEX"}[mode]
        to, _, valid = i.operands[0].partition("|")
        value, by, clamp, mask = self.values(i, "u32")
        call = f"shuffle<{kind}>(thread, {value}, {by}, {clamp}, {mask}, valid)"
        assigned = self.write(to.strip(), "u32", "v")
        if valid and valid != "_":
            assigned += self.write(valid.strip(), "pred", "valid")
        return f"{{ bool valid; u32 v = {call}; {assigned} }}"


def main() -> None:
    source, target = map(Path, sys.argv[1:])
    try:
        target.write_text(translate(source.read_text().rstrip("\0")))
    except Untranslatable as error:
        sys.exit(f"emulated CUDA: not translated: {error}")


if __name__ == "__main__":
    main()
