#!/usr/bin/env python3
"""Wrong calls: each must be an error of ours that says what is wrong and what is taken, and each on its own line.

    refused.py --compiler g++ --include include [--show]
"""
import argparse
import concurrent.futures
import re
import subprocess
import sys

NO_BUFFER = "this type is no buffer. Buffers are numbers"
CONST = "this buffer is const, but the call writes to it"
TEMPORARY = "this buffer is a temporary, and what the call writes to it would be lost"
MOVED_ONLY = "can be moved but not combined. Reductions take bool"
TIME = "a time needs a unit: std::chrono::seconds("
TIMEOUT = "a timeout goes into the options: {.timeout = 5s}"
NUMBER = "a number is no option: name it in braces"
ARGUMENT = "neither a buffer that can be written to nor options. Options are a ReduceOp (ReduceOp::sum,"
INTEGERS = "counts and ranks are lists of integers"
NO_OBJECT = "this type is no object. Objects are numbers"

# Name: (what is written with a group `w`, what the error says). A compiler reports a template once for each type: where
# two cases have one mistake they have different types.
CASES = {
    # wrong types of buffers
    "vec_string": ("std::vector<std::string> v(3); w.all_reduce(v);", NO_BUFFER),
    "vec_string_send": ("std::vector<std::string> v(3); w.send(v, 1);", NO_BUFFER),
    "vec_bool": ("std::vector<bool> v(3); w.all_reduce(v);", "std::vector<bool> holds packed bits"),
    "vec_bool_send": ("std::vector<bool> v(3); w.send(v, 1);", "use std::vector<char> or std::vector<std::uint8_t>"),
    "vec_bool_recv_resize": ("const std::vector<bool> v(3); w.recv_resize(v, 1);", "std::vector<bool> holds packed bits"),
    "vec_vec": ("std::vector<std::vector<float>> v(9); w.all_reduce(v);", NO_BUFFER),
    "map": ("std::map<int, int> v; w.broadcast(v);", NO_BUFFER),
    "deque": ("std::deque<float> v(3); w.all_reduce(v);", NO_BUFFER),
    "iota": ("auto v = std::views::iota(0, 3); w.send(v, 1);", NO_BUFFER),
    "pointer": ("float f[3]; float* p = f; w.send(p, 1);", "pass std::span(pointer, count)"),
    "pointer_recv": ("double f[3]; double* p = f; w.recv(p, 1);", "pass std::span(pointer, count)"),
    "atomic": ("std::atomic<int> v = 1; w.all_reduce(v);", NO_BUFFER),
    "vec_string_view": ("std::vector<std::string_view> v(3); w.send(v, 1);", NO_BUFFER),
    "recv_resize_array": ("std::array<int, 3> v; w.recv_resize(v, 1);", "recv_resize makes room for what comes"),
    "message_of_string_list": ("std::vector<std::set<int>> v; w.batch({tutti::Message::send(v, 1)});", NO_BUFFER),
    # right types, but not for this
    "const_vec": ("const std::vector<float> v(3); w.all_reduce(v);", CONST),
    "const_recv": ("const std::vector<double> v(3); w.recv(v, 1);", CONST),
    "const_span": ("std::vector<short> v(9); w.all_reduce(std::span<const short>(v));", CONST),
    "const_output": ("std::vector<float> x(9); const std::vector<long> v(9); w.all_gather(x, v);", ARGUMENT),
    "string_view_recv": ("std::string_view v; w.recv(v, 1);", CONST),
    "temporary": ("w.all_reduce(std::vector<float>{1, 2});", TEMPORARY),
    "temporary_recv": ("w.recv(std::vector<int>(3), 0);", TEMPORARY),
    "temporary_scalar": ("w.all_reduce(3.0f);", TEMPORARY),
    "vec_struct": ("struct P { float x, y; }; std::vector<P> v(3); w.all_reduce(v);", MOVED_ONLY),
    "struct": ("struct Q { float x, y; }; Q v; w.scan(v);", MOVED_ONLY),
    "enum": ("enum class E { a, b }; E v = E::a; w.reduce(v);", MOVED_ONLY),
    "long_double": ("long double v = 1; w.all_reduce(v);", MOVED_ONLY),
    "optional": ("std::optional<float> v(9); w.all_reduce(v);", MOVED_ONLY),
    "complex_long": ("std::complex<long double> v; w.all_reduce(v);", MOVED_ONLY),
    "struct_input": ("struct R { int x; }; std::vector<R> v(2); R out; w.reduce_scatter(v, out);", MOVED_ONLY),
    # roots, tags, timeouts
    "root_int": ("std::vector<float> x(9); w.broadcast(x, 0);", NUMBER),
    "root_int_reduce": ("std::vector<float> x(9); w.reduce(x, 1);", NUMBER),
    "root_int_gather": ("std::vector<float> x(9), y(18); int root = 1; w.gather(x, y, root);", NUMBER),
    "root_int_scatterv": ("std::vector<float> x(9), y(18); std::vector<int> c; w.scatterv(x, c, y, 1);", NUMBER),
    "tag_int": ("std::vector<float> x(9); w.send(x, 1, 5);", NUMBER),
    "tag_int_recv": ("std::vector<float> x(9); w.recv(x, 1, 5);", NUMBER),
    "sendrecv_positions": ("std::vector<float> x(9), y(9); w.sendrecv(x, 1, y, 1);", NUMBER),
    "split_int": ("w.split(0);", NUMBER),
    "timeout_int": ("std::vector<float> x(9); w.all_reduce(x, {.timeout = 5});", TIME),
    "timeout_double": ("std::vector<float> x(9); w.broadcast(x, {.timeout = 0.5});", TIME),
    "timeout_bare": ("std::vector<float> x(9); w.all_reduce(x, 5s);", TIMEOUT),
    "timeout_bare_barrier": ("w.barrier(5s);", TIMEOUT),
    "wait_for_int": ("tutti::Work a; a.wait_for(1);", TIME),
    # reduce operations
    "op_string": ('std::vector<float> x(9); w.all_reduce(x, "sum");', ARGUMENT),
    "op_plus": ("std::vector<float> x(9); w.all_reduce(x, std::plus<>{});", ARGUMENT),
    "op_lambda": ("std::vector<float> x(9); w.all_reduce(x, [](float a, float b) { return a + b; });", ARGUMENT),
    "op_string_out": ('std::vector<float> x(9), y(9); w.reduce(x, y, "max");', ARGUMENT),
    # counts and ranks
    "counts_double": ("std::vector<float> x(9), y(18); std::vector<double> c(2); w.all_gatherv(x, y, c);", INTEGERS),
    "counts_int": ("std::vector<float> x(9), y(18); w.all_gatherv(x, y, 9);", INTEGERS),
    "ranks_int": ("auto g = w.new_group(0, 1);", "new_group takes a list of ranks: {0, 1}"),
    # objects
    "object_struct": ("struct S { int a; std::string b; }; S s; tutti::broadcast_object(w, s);", NO_OBJECT),
    "object_constructor": ("struct S { int a; S() : a(1) {} }; S s; tutti::broadcast_object(w, s);", NO_OBJECT),
    "object_private": ("class S { int a = 3; public: int b = 4; }; S s; tutti::broadcast_object(w, s);",
                       "For a type of your own specialise tutti::ObjectCodec"),
    "object_const": ("const std::string s; tutti::broadcast_object(w, s);", "this object is const"),
    "object_temporary": ('tutti::broadcast_object(w, std::string("a"));', "this object is a temporary"),
    "object_literal": ('auto v = tutti::all_gather_object(w, "abc");', 'pass std::string('),
    "object_pointer": ("int* p = nullptr; auto v = tutti::all_gather_object(w, p);", NO_OBJECT),
    "object_recv": ("auto v = tutti::recv_object<std::string_view>(w, 0);", NO_OBJECT),
    # other calls
    "rank_missing": ("std::vector<float> x(9); w.send(x);", "group.send(x, to)"),
    "rank_missing_recv": ("std::vector<float> x(9); w.recv(x);", "group.recv(x, from)"),
    "rank_missing_resize": ("std::vector<float> x(9); w.recv_resize(x);", "group.recv_resize(x, from)"),
    "to_missing": ("std::vector<float> x(9), y(9); w.sendrecv(x, y, {.from = 1});", "{.to = 1, .from = 1}"),
    "from_missing": ("std::vector<int> x(9), y(9); w.sendrecv(x, y, {.to = 1});", "{.to = 1, .from = 1}"),
    "recv_value": ("auto x = w.recv<int>(0);", "recv writes to a buffer: T value; group.recv(value, from)"),
    "then_lvalue": ("tutti::Work a; a.then([](const tutti::Error*) {}).wait();", "work = std::move(work).then(callback)"),
    "detach_lvalue": ("tutti::Work a; a.detach();", "std::move(work).detach()"),
    "spawn_moved_only": ("auto p = std::make_unique<int>(5); auto s = tutti::spawn(2, [p = std::move(p)](int) {});",
                         "hold what can only be moved in a std::shared_ptr"),
    "spawn_arguments": ("auto s = tutti::spawn(2, [](int, float) {}, 0.1f);", "bind other arguments in a lambda"),
    "spawn_no_rank": ("auto s = tutti::spawn(2, [] {});", "takes its rank alone"),
    "init_string": ('auto g = tutti::init_process_group("gloo");', 'init_process_group({.backend = '),
}
# Mistakes of plain C++, which are left to the compiler: it must refuse them, in whatever words.
PLAIN = {
    "copy_group": "auto w2 = w;",
    "copy_work": "tutti::Work a; auto b = a;",
    "const_group": "const auto& g = w; g.barrier();",
    "reference_to_temporary": "tutti::ProcessGroup& g = tutti::init_process_group();",
    "name_isend": "std::vector<float> x(9); auto k = w.isend(x, 1);",
    "name_allreduce": "std::vector<float> x(9); w.allreduce(x);",
    "name_size": "auto n = w.size();",
    "name_free_function": "tutti::all_reduce(w, 3);",
    "name_op": "std::vector<float> x(9); w.all_reduce(x, tutti::ReduceOp::SUM);",
    "designator_order": "std::vector<float> x(9); w.reduce(x, {.root = 1, .op = tutti::ReduceOp::max});",
    "argument_order": "std::vector<float> x(9); w.all_reduce(x, tutti::async, {.op = tutti::ReduceOp::max});",
    "half_arithmetic": "tutti::float16 a(1.f), b(2.f); auto c = a + b;",
}
# clang 14 cannot read the views of libstdc++ 12.
GCC_ONLY = {"iota"}
HEADERS = "atomic chrono complex deque functional list map memory optional ranges set string string_view vector".split()


def compiled(options, is_clang, names):
    """The compiler's lines about a program of these cases."""
    text = "".join(f"#include <{name}>\n" for name in HEADERS) + "#include <tutti/tutti.h>\nusing namespace std::chrono_literals;\n"
    for name in names:
        body = CASES[name][0] if name in CASES else PLAIN[name]
        text += f'#line 1 "{name}.case"\nvoid case_{name}([[maybe_unused]] tutti::ProcessGroup& w) {{ {body} }}\n'
    limit = ["-ferror-limit=0", "-pedantic-errors"] if is_clang else []
    done = subprocess.run([options.compiler, "-std=c++20", "-fsyntax-only", "-fdiagnostics-color=never", *limit, "-I",
                           options.include, "-x", "c++", "-"], input=text, capture_output=True, text=True)
    return done.stderr.splitlines()


def errors_by_case(lines, context_first):
    """g++ says before an error where it comes from, clang after it."""
    errors, case, waiting = {}, None, []
    for line in lines:
        found = re.match(r"(\w+)\.case:", line)
        if found:
            case = found[1]
            errors.setdefault(case, []).extend(waiting)
            waiting = []
        if "error:" in line:
            if context_first or found:
                errors.setdefault(case, []).append(line)
            else:
                waiting.append(line)
    return errors


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compiler", required=True)
    parser.add_argument("--include", required=True)
    parser.add_argument("--show", action="store_true", help="print every error")
    options = parser.parse_args()
    version = subprocess.run([options.compiler, "--version"], capture_output=True, text=True).stdout
    is_clang = "clang" in version
    names = [name for name in [*CASES, *PLAIN] if not (is_clang and name in GCC_ONLY)]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        outputs = list(pool.map(lambda part: compiled(options, is_clang, part), [names[0::2], names[1::2]]))
    errors = {}
    for lines in outputs:
        errors |= errors_by_case(lines, not is_clang)
    wrong = []
    for name in names:
        said = errors.get(name, [])
        if options.show:
            print(name, *said, sep="\n  ")
        if name in PLAIN and not said:
            wrong.append(f"{name}: compiles")
        if name in CASES and not any("tutti: " in line and CASES[name][1] in line for line in said):
            wrong.append(f"{name}: expected '{CASES[name][1]}', the compiler says:\n    " + "\n    ".join(said or ["nothing"]))
    print(*wrong, sep="\n")
    print(f"refused: {len(CASES)} by us, {len(PLAIN)} by the compiler alone, {len(wrong)} wrong")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
