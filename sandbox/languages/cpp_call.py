"""What stands below a C++ program of the function kind, and calls its function."""

from typing import Final

# Below the program, so with names that no macro of a program has.
CPP_CALL: Final = """
struct sandbox_direct {
    template <class Sandbox_job, class Sandbox_owner = {owner}>
    auto operator()(Sandbox_job &sandbox_job) const -> decltype(sandbox_harness::sandbox_call(sandbox_job, {callee})) {
        return sandbox_harness::sandbox_call(sandbox_job, {callee});
    }
};
void sandbox_harness_call() {
    sandbox_harness::sandbox_choose(sandbox_direct{}, [](auto &&...sandbox_given) -> decltype({called}) {
        return {called};
    });
}
"""
