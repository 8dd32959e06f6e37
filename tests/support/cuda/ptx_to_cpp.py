"""Translate PTX, as NVRTC writes it, into C++ that runs a grid on one CPU thread.

Every register becomes an unsigned variable that holds its bits, every instruction one statement,
every label a label; kernel.h has the arithmetic and the scheduler. What is not known raises
Untranslatable with the instruction: nothing is guessed.

Left out: half2 and bfloat16 arithmetic, textures, tensor cores, clusters, mbarrier, printf (it is
dropped), barriers other than number 0, calls, instructions that no kernel has, debug information.

Usage: ptx_to_cpp.py INPUT.ptx OUTPUT.cpp
"""

import re
import sys
from dataclasses import dataclass
from pathlib import Path

WIDTH = {"pred": 1} | {
    f"{kind}{bits}": bits
    for kind, widths in (("b", (8, 16, 32, 64)), ("u", (8, 16, 32, 64)), ("s", (8, 16, 32, 64)))
    for bits in widths
} | {"f16": 16, "f32": 32, "f64": 64}  # fmt: skip
SPACES = ("param", "global", "shared", "local", "const")
ROUNDINGS = {"rz": "FE_TOWARDZERO", "rm": "FE_DOWNWARD", "rp": "FE_UPWARD"}
COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
SPECIAL = {
    **{f"%tid.{a}": f"thread.{a}" for a in "xyz"},
    **{f"%ntid.{a}": f"launch.block_{a}" for a in "xyz"},
    **{f"%ctaid.{a}": f"block.{a}" for a in "xyz"},
    **{f"%nctaid.{a}": f"launch.grid_{a}" for a in "xyz"},
}
SIGNATURE = "Launch& launch, Block& block, Thread& thread, char* params, char* shared"
ARRAY = r"((?:\[\d*\])*)"
IGNORED_DIRECTIVES = (".loc", ".pragma", ".file", ".callprototype", ".maxntid", ".minnctapersm")
IGNORED_INSTRUCTIONS = ("membar", "fence", "prefetch", "nanosleep", "discard")


class Untranslatable(Exception):
    """Something that this translator does not know."""


@dataclass
class Instruction:
    """``name.modifier.type operand, operand``."""

    text: str
    name: str
    modifiers: list[str]
    operands: list[str]

    @property
    def type(self) -> str:
        return self.modifiers[-1]

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
    """The type itself, or for untyped bits the unsigned one."""
    return f"u{of[1:]}" if of[0] == "b" else of


def identifier(name: str) -> str:
    return re.sub(r"\W", "_", name)


def label(name: str) -> str:
    return f"L_{identifier(name)}"


def elements(dimensions: str) -> int:
    count = 1
    for number in re.findall(r"\d+", dimensions):
        count *= int(number)
    return count


def split(text: str) -> list[str]:
    """Operands, at the commas outside of brackets."""
    parts, depth, part = [], 0, ""
    for character in text:
        depth += (character in "{[(") - (character in "}])")
        if character == "," and depth == 0:
            parts.append(part.strip())
            part = ""
        else:
            part += character
    return parts + [part.strip()] * bool(part.strip())


def items_of(operand: str) -> list[str]:
    """``{a, b}`` as a list, ``a`` as a list of one."""
    return split(operand[1:-1]) if operand[0] == "{" else [operand]


class Module:
    """A file of PTX: its variables, functions and kernels."""

    def __init__(self, text: str):
        text = re.sub(r"//[^\n]*", "", text)
        self.text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
        self.output: list[str] = []
        self.variables: dict[str, tuple[str, int, int, bool]] = {}
        self.kernels: list[Kernel] = []

    def translate(self) -> str:
        items = list(self.items())
        for head, body in items:
            if body is None:
                self.variable(head)
        for head, body in items:
            if body is not None:
                self.function(head, body)
        self.table()
        return "\n".join(['#include "kernel.h"', *self.output, ""])

    def items(self):
        """The statements (body None) and the functions (head, body) of the file."""
        text, at = self.text, 0
        while at < len(text):
            if text[at].isspace():
                at += 1
            elif text.startswith((".version", ".target", ".address_size"), at):
                at = text.index("\n", at)
            else:
                end = min(found for c in ";{" if (found := text.find(c, at)) >= 0)
                if text[end] == "{" and "=" not in text[at:end]:
                    depth, close = 1, end + 1
                    while depth:
                        depth += (text[close] == "{") - (text[close] == "}")
                        close += 1
                    yield text[at:end].strip(), text[end + 1 : close - 1]
                    at = close
                else:
                    end = text.index(";", at)
                    yield text[at:end].strip(), None
                    at = end + 1

    def variable(self, head: str) -> None:
        if not head or ".func" in head or ".entry" in head or head.startswith(".pragma"):
            return
        found = re.match(
            r"(?:\.(?:visible|extern|weak|common)\s+)*\.(global|const|shared)\s+"
            r"(?:\.attribute\([^)]*\)\s*)?(?:\.align\s+(\d+)\s+)?\.(\w+)\s+([\w$]+)"
            + ARRAY
            + r"\s*(?:=\s*(.*))?$",
            head,
            re.S,
        )
        if not found:
            raise Untranslatable(f"variable {head[:100]}")
        space, align, of, name, dimensions, initial = found.groups()
        count = elements(dimensions)
        size = count * WIDTH[of] // 8
        self.variables[name] = (space, int(align or WIDTH[of] // 8), size, "[]" in dimensions)
        if space == "shared":
            return
        values = ""
        if initial:
            numbers = split(initial.strip().strip("{}"))
            values = " = {" + ", ".join(self.initial(x, of) for x in numbers) + "}"
        self.output.append(f"alignas(16) static {unsigned(of)} V_{name}[{max(1, count)}]{values};")
        self.output.append(f'extern "C" void* emu_var_{name} = (void*)V_{name};')
        self.output.append(f'extern "C" unsigned long emu_size_{name} = {size};')

    @staticmethod
    def initial(value: str, of: str) -> str:
        if value.startswith(("0f", "0d")):
            return f"0x{value[2:]}ull"
        if not re.match(r"-?\d", value):
            raise Untranslatable(f"initial value {value}")
        return f"({unsigned(of)}){value}{'ll' if WIDTH[of] == 64 else ''}"

    @staticmethod
    def parameters(text: str) -> tuple[list[tuple[str, int, int]], int]:
        """Name, offset and size of each, and the size of all."""
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

    def function(self, head: str, body: str) -> None:
        found = re.search(r"\.entry\s+([\w$]+)\s*(?:\((.*?)\))?", head, re.S)
        if not found:
            raise Untranslatable(f"function {head[:80]}")
        kernel = Kernel(self, found[1], self.parameters(found[2] or ""), body)
        kernel.emit()
        self.kernels.append(kernel)

    def table(self) -> None:
        """What cuda_driver.cpp reads."""
        rows = []
        for kernel in self.kernels:
            name = identifier(kernel.name)
            for what, values in (
                ("sizes", [size for _, _, size in kernel.parameters]),
                ("offsets", [offset for _, offset, _ in kernel.parameters]),
            ):
                listed = ", ".join(map(str, values)) or "0"
                self.output.append(f"static const unsigned {what}_{name}[] = {{{listed}}};")
            rows.append(
                f'{{"{kernel.name}", {len(kernel.parameters)}, sizes_{name}, offsets_{name}, '
                f"{kernel.parameter_bytes}, {kernel.shared_bytes}, {int(kernel.meets)}, K_{name}}},"
            )
        end = "{nullptr, 0, nullptr, nullptr, 0, 0, 0, nullptr}"
        self.output += ['extern "C" const KernelInfo emu_kernels[] = {', *rows, f"{end}}};"]


class Kernel:
    """A kernel; its device functions are inlined."""

    def __init__(self, module, name, parameters, body):
        self.module, self.name, self.body = module, name, body
        self.parameters, self.parameter_bytes = parameters
        self.offsets = {name: offset for name, offset, _ in self.parameters}
        self.registers: dict[str, tuple[str, int]] = {}
        self.declared: list[str] = []
        self.shared: dict[str, int] = {}
        self.local: dict[str, tuple[int, int]] = {}
        self.shared_bytes = 0
        self.meets = False

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
        return self.address_of(operand)

    def address_of(self, name: str) -> str:
        if name not in self.shared and name in self.module.variables:
            space, align, size, dynamic = self.module.variables[name]
            if space != "shared":
                return f"((u64)(size_t)V_{name})"
            if dynamic:
                return "((u64)launch.dynamic_offset)"
            self.add_shared(name, align, size)
        if name in self.shared:
            return f"((u64){self.shared[name]}u)"
        if name in self.local:
            return f"((u64)(size_t)local{self.local[name][0]})"
        if name in self.offsets:
            return f"((u64)(size_t)(params + {self.offsets[name]}))"
        raise Untranslatable(f"operand {name}")

    def add_shared(self, name: str, align: int, size: int) -> None:
        self.shared[name] = -(-self.shared_bytes // align) * align
        self.shared_bytes = self.shared[name] + size

    def read(self, operand: str, of: str) -> str:
        """An operand as an expression of a type."""
        if of == "pred":
            if operand.startswith("!"):
                return f"(!{self.raw(operand[1:])})"
            return {"0": "false", "1": "true"}.get(operand) or f"((bool){self.raw(operand)})"
        if of[0] == "f":
            return f"as_{of}(({unsigned(of)}){self.raw(operand)})"
        return f"(({cpp_type(of)}){self.raw(operand)})"

    def write(self, to: str, of: str, expression: str) -> str:
        """The statement that assigns an expression of a type."""
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

    def space(self, i: Instruction) -> str:
        return i.one_of(*SPACES, "shared_cta") or "generic"

    def pointer(self, operand: str, space: str) -> str:
        found = re.match(r"\[\s*([%\w$.]+)\s*(?:\+\s*(-?\w+))?\s*\]$", operand)
        if not found:
            raise Untranslatable(f"address {operand}")
        place = f"{self.raw(found[1])} + ({found[2] or 0})"
        if space.startswith("shared"):
            return f"(shared + (u32)({place}))"
        return f"((char*)(size_t)({place}))"

    @staticmethod
    def check(space: str, pointer: str, size: int) -> str:
        if space == "global":
            return f"check_global({pointer}, {size});"
        if space.startswith("shared"):
            return f"check_shared({pointer}, {size}, shared, launch);"
        return ""

    # The body

    def emit(self) -> None:
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
            *(f"{cpp_type(unsigned(t)) if t != 'pred' else 'bool'} r{n} = 0;"
              for n, t in enumerate(self.declared)),
            *(f"alignas(16) char local{n}[{size}];" for n, size in self.local.values()),
        ]  # fmt: skip
        head = f"static void K_{identifier(self.name)}({SIGNATURE}) {{"
        self.module.output += [head, *declarations, *code, "}"]

    def statements(self):
        """Labels, braces and statements in their order."""
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
            r"\.(shared|local)\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+([\w$]+)" + ARRAY, text
        ):
            space, align, of, name, dimensions = found.groups()
            size = elements(dimensions) * WIDTH[of] // 8
            if space == "shared":
                self.add_shared(name, int(align or 8), size)
            else:
                self.local[name] = (len(self.local), size)
        elif not text.startswith(IGNORED_DIRECTIVES):
            raise Untranslatable(f"directive {text}")
        return ""

    # Instructions

    def instruction(self, i: Instruction) -> str:
        if i.name in IGNORED_INSTRUCTIONS:
            return ""
        is_float = bool(i.modifiers) and i.type in ("f16", "f32", "f64")
        handler = getattr(self, f"do_{i.name}", None)
        if is_float:
            handler = getattr(self, f"do_float_{i.name}", handler)
        if not handler:
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
            parts = items_of(to)
            width = WIDTH[i.type] // len(parts)
            return " ".join(
                self.write(part, f"u{width}", f"{self.read(source, whole)} >> {n * width}")
                for n, part in enumerate(parts)
            )
        if source[0] == "{":
            parts = items_of(source)
            width = WIDTH[i.type] // len(parts)
            joined = " | ".join(
                f"(({whole}){self.read(part, f'u{width}')} << {n * width})"
                for n, part in enumerate(parts)
            )
            return self.write(to, whole, joined)
        return self.write(to, whole, self.read(source, whole))

    def do_ld(self, i):
        space, width = self.space(i), WIDTH[i.type] // 8
        to = items_of(i.operands[0])
        pointer = self.pointer(i.operands[1], space)
        of = i.type if i.type[0] == "s" else unsigned(i.type)
        loads = " ".join(
            self.write(x, of, f"load<{cpp_type(of)}>(p + {n * width})") for n, x in enumerate(to)
        )
        check = self.check(space, "p", width * len(to))
        return f"{{ char* p = {pointer}; {check} {loads} }}"

    def do_st(self, i):
        space, width = self.space(i), WIDTH[i.type] // 8
        values = items_of(i.operands[1])
        pointer = self.pointer(i.operands[0], space)
        of = unsigned(i.type)
        stores = " ".join(
            f"store<{of}>(p + {n * width}, {self.read(x, of)});" for n, x in enumerate(values)
        )
        check = self.check(space, "p", width * len(values))
        return f"{{ char* p = {pointer}; {check} {stores} }}"

    def do_cvta(self, i):
        if "global" not in i.modifiers:
            raise Untranslatable(f"{self.name}: {i.text}")
        return self.write(i.operands[0], "u64", self.read(i.operands[1], "u64"))

    def do_atom(self, i):
        to, address, *values = i.operands
        space = "shared" if self.space(i).startswith("shared") else "global"
        kind = i.one_of("add", "min")
        of = integer(i.type)
        given = ", ".join(self.read(x, of) for x in values)
        update = self.write(to, of, f"atomic_{kind}<{cpp_type(of)}>(p, {given})")
        check = self.check(space, "p", WIDTH[of] // 8)
        return f"{{ char* p = {self.pointer(address, space)}; {check} {update} }}"

    # Floating point

    def do_float_add(self, i):
        if i.one_of(*ROUNDINGS):
            raise Untranslatable(f"{self.name}: {i.text}")
        operator = {"add": "+", "sub": "-", "mul": "*", "div": "/"}[i.name]
        return self.write_float(i, f"({f' {operator} '.join(self.floats(i))})")

    do_float_sub = do_float_mul = do_float_div = do_float_add

    def do_float_fma(self, i):
        values = ", ".join(self.floats(i))
        mode = ROUNDINGS.get(i.one_of(*ROUNDINGS))
        call = f"fused_rounded({mode}, {values})" if mode else f"fused({values})"
        return self.write_float(i, call)

    do_float_mad = do_float_fma

    def do_float_neg(self, i):
        return self.write_float(i, f"(-{self.floats(i)[0]})")

    def do_float_abs(self, i):
        return self.write_float(i, f"std::fabs({self.floats(i)[0]})")

    def extreme(self, i):
        if "NaN" in i.modifiers:
            raise Untranslatable(f"{self.name}: {i.text}")
        return self.write_float(i, f"{i.name}_number({', '.join(self.floats(i))})")

    do_float_min = do_float_max = extreme

    def approximation(self, i):
        if i.one_of(*ROUNDINGS):
            raise Untranslatable(f"{self.name}: {i.text}")
        return self.write_float(i, f"op_{i.name}({self.floats(i)[0]})")

    do_float_rcp = do_float_ex2 = approximation

    # Integers

    def do_add(self, i):
        sign = "+" if i.name == "add" else "-"
        x, y = self.values(i, unsigned(i.type))
        if i.one_of("sat", "cc"):
            raise Untranslatable(f"{self.name}: {i.text}")
        return self.write(i.operands[0], i.type, f"({x} {sign} {y})")

    do_sub = do_add

    def do_mul(self, i):
        to, x, y, *added = i.operands
        width = WIDTH[i.type]
        of = unsigned(i.type)
        if "wide" in i.modifiers and not added:
            wide = f"{integer(i.type)[0]}{2 * width}"
            value = f"(({wide}){self.read(x, i.type)} * ({wide}){self.read(y, i.type)})"
            return self.write(to, wide, value)
        if "lo" not in i.modifiers:
            raise Untranslatable(f"{self.name}: {i.text}")
        value = f"({of})((u64){self.read(x, of)} * (u64){self.read(y, of)})"
        if added:
            value = f"({value} + {self.read(added[0], of)})"
        return self.write(to, of, value)

    do_mad = do_mul

    def do_div(self, i):
        values = ", ".join(self.values(i))
        return self.write(i.operands[0], i.type, f"op_{i.name}<{cpp_type(i.type)}>({values})")

    do_rem = do_div

    def do_neg(self, i):
        return self.write(i.operands[0], i.type, f"(0 - {self.values(i, unsigned(i.type))[0]})")

    def do_min(self, i):
        values = ", ".join(self.values(i))
        return self.write(i.operands[0], i.type, f"{i.name}_of<{cpp_type(i.type)}>({values})")

    do_max = do_min

    def do_and(self, i):
        operator = {"and": "&", "or": "|", "xor": "^"}[i.name]
        x, y = self.values(i)
        truth = " != 0" if i.type == "pred" else ""
        return self.write(i.operands[0], i.type, f"({x} {operator} {y}){truth}")

    do_or = do_xor = do_and

    def do_not(self, i):
        operator = "!" if i.type == "pred" else "~"
        return self.write(i.operands[0], i.type, f"{operator}{self.values(i)[0]}")

    def do_shl(self, i):
        width, of = WIDTH[i.type], unsigned(i.type)
        value, by = self.read(i.operands[1], of), self.read(i.operands[2], "u32")
        moved = f"({value} << ({by} & {width - 1}))"
        return self.write(i.operands[0], i.type, f"({by} >= {width} ? 0 : {moved})")

    def do_shr(self, i):
        width, of = WIDTH[i.type], integer(i.type)
        value, by = self.read(i.operands[1], of), self.read(i.operands[2], "u32")
        far = f"({value} >> {width - 1})" if of[0] == "s" else "0"
        moved = f"({value} >> ({by} & {width - 1}))"
        return self.write(i.operands[0], of, f"({by} >= {width} ? {far} : {moved})")

    def do_clz(self, i):
        of = unsigned(i.type)
        result = of if i.name == "brev" else "u32"
        return self.write(i.operands[0], result, f"op_{i.name}({self.values(i, of)[0]})")

    do_popc = do_brev = do_clz

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
        if i.one_of("and", "or", "xor"):
            raise Untranslatable(f"{self.name}: {i.text}")
        assigned = ""
        for value, to in zip(("v", "!v"), i.operands[0].split("|"), strict=False):
            if to.strip() != "_":
                assigned += self.write(to.strip(), "pred", value)
        return f"{{ bool v = {self.comparison(i, i.type)}; {assigned} }}"

    do_float_setp = do_setp

    def do_cvt(self, i):
        to, source = i.modifiers[-2], i.modifiers[-1]
        rounding = i.one_of("rn", "rz", "rm", "rp", "rni", "rzi", "rmi", "rpi") or "rn"
        value = self.read_float(i, i.operands[1], source)
        if rounding not in ("rn", "rni", "rzi") or ("sat" in i.modifiers and to[0] != "f"):
            raise Untranslatable(f"{self.name}: {i.text}")
        if to[0] == "f":
            if source[0] == "f" and rounding.endswith("i"):
                value = f"to_integral_{rounding}({value})"
            return self.write_float(i, f"({cpp_type(to)})({value})", to)
        if source[0] == "f":
            whole = f"to_integral_{rounding}({value})"
            return self.write(i.operands[0], to, f"float_to_int<{cpp_type(to)}>({whole})")
        return self.write(i.operands[0], to, value)

    do_float_cvt = do_cvt

    # Threads that meet

    def do_bar(self, i):
        self.meets = True
        if "warp" in i.modifiers:
            return "warp_barrier(thread);"
        reduces = "red" in i.modifiers
        number, *rest = i.operands[1:] if reduces else i.operands
        if number != "0" or len(rest) != reduces or i.one_of("popc", "and"):
            raise Untranslatable(f"{self.name}: {i.text}")
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
        target.write_text(Module(source.read_text().rstrip("\0")).translate())
    except Untranslatable as error:
        sys.exit(f"emulated CUDA: not translated: {error}")


if __name__ == "__main__":
    main()
