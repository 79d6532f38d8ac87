// Calls a C++ function with JSON arguments and writes its value. Job on descriptor 3 (JSON, then the nonce), result on 4.
// It stands above the program; lines below it hand the callee to `sandbox_harness::sandbox_choose`. Parameter types are deduced
// from the callee, never parsed from text; where it has overloads or default arguments, by the number of arguments.
// Linked with --wrap=main, so the program may have a main. System calls go by `syscall`, for a program's own variable
// `write` would take the place of the C library's function.
#ifndef SANDBOX_HARNESS_HPP
#define SANDBOX_HARNESS_HPP
#include <bits/stdc++.h>
#include <sys/syscall.h>
#include "harness_json.hpp"

void sandbox_harness_call();

namespace sandbox_harness {

extern "C" long syscall(long, ...) noexcept;

// ---- JSON to parameters ---------------------------------------------------------------------------------------------

inline const Json &expect(const Json &json, Json::Kind kind, const char *what) {
    if (json.kind != kind) throw Misfit(std::string(what) + " wanted");
    return json;
}

inline void from(const Json &json, bool &out) { out = expect(json, Json::Truth, "a truth value").text == "true"; }
inline void from(const Json &json, std::string &out) { out = expect(json, Json::Text, "a text").text; }
inline void from(const Json &json, Json &out) { out = json; }

inline void from(const Json &json, char &out) {
    if (expect(json, Json::Text, "a character").text.size() != 1) throw Misfit("one character wanted");
    out = json.text[0];
}

template <class T> std::enable_if_t<std::is_floating_point_v<T>> from(const Json &json, T &out) {
    const std::string &text = expect(json, Json::Number, "a number").text;
    out = text == "NaN" ? std::nan("") : T(std::stold(text));
}

template <class T> std::enable_if_t<std::is_integral_v<T>> from(const Json &json, T &out) {
    const std::string &text = expect(json, Json::Number, "an integer").text;
    const char *end = text.data() + text.size();
    auto [stop, error] = std::from_chars(text.data(), end, out);
    if (error != std::errc() || stop != end) throw Misfit(text + " does not fit the integer parameter");
}

template <class A, class B> void from(const Json &, std::pair<A, B> &);
template <class... T> void from(const Json &, std::tuple<T...> &);
template <class T> void from(const Json &, std::optional<T> &);
template <class T, size_t N> void from(const Json &, std::array<T, N> &);
template <class K, class V, class... R> void from(const Json &, std::map<K, V, R...> &);
template <class K, class V, class... R> void from(const Json &, std::unordered_map<K, V, R...> &);

template <class T> auto from(const Json &json, T &out) -> decltype(out.insert(out.end(), std::declval<typename T::value_type>()), void()) {
    for (const Json &item : expect(json, Json::List, "a list").items) {
        typename T::value_type value{};
        from(item, value);
        out.insert(out.end(), std::move(value));
    }
}

inline void from(const Json &json, std::vector<bool> &out) {
    for (const Json &item : expect(json, Json::List, "a list").items) out.push_back(expect(item, Json::Truth, "a truth value").text == "true");
}

template <class A, class B> void from(const Json &json, std::pair<A, B> &out) {
    if (expect(json, Json::List, "a list of two").items.size() != 2) throw Misfit("a list of two wanted");
    from(json.items[0], out.first);
    from(json.items[1], out.second);
}

template <class... T> void from(const Json &json, std::tuple<T...> &out) {
    if (expect(json, Json::List, "a list").items.size() != sizeof...(T)) throw Misfit("a list of another length wanted");
    size_t next = 0;
    std::apply([&](auto &...item) { (from(json.items[next++], item), ...); }, out);
}

template <class T> void from(const Json &json, std::optional<T> &out) {
    if (json.kind != Json::Null) from(json, out.emplace());
}

template <class T, size_t N> void from(const Json &json, std::array<T, N> &out) {
    if (expect(json, Json::List, "a list").items.size() != N) throw Misfit("a list of another length wanted");
    for (size_t i = 0; i < N; i++) from(json.items[i], out[i]);
}

template <class M> void from_object(const Json &json, M &out) {
    expect(json, Json::Object, "an object");
    for (size_t i = 0; i < json.keys.size(); i++) {
        bool is_text = std::is_same_v<typename M::key_type, std::string> || std::is_same_v<typename M::key_type, char>;
        Json name;
        name.kind = is_text ? Json::Text : Json::Number;
        name.text = json.keys[i];
        typename M::key_type key{};
        from(name, key);
        from(json.items[i], out[key]);
    }
}

template <class K, class V, class... R> void from(const Json &json, std::map<K, V, R...> &out) { from_object(json, out); }
template <class K, class V, class... R> void from(const Json &json, std::unordered_map<K, V, R...> &out) { from_object(json, out); }

// What only points at a text or at numbers has them here.
template <class T> T &sandbox_kept() { static std::deque<T> all; return all.emplace_back(); }

template <class T> std::enable_if_t<std::is_same_v<std::remove_const_t<T>, char>> from(const Json &json, T *&out) {
    auto &text = sandbox_kept<std::string>();
    from(json, text);
    out = text.data();
}

template <class T> std::enable_if_t<std::is_arithmetic_v<T> && !std::is_same_v<std::remove_const_t<T>, char> && !std::is_same_v<std::remove_const_t<T>, bool>> from(const Json &json, T *&out) {
    auto &all = sandbox_kept<std::vector<std::remove_const_t<T>>>();
    from(json, all);
    out = all.data();
}

inline void from(const Json &json, std::string_view &out) {
    auto &text = sandbox_kept<std::string>();
    from(json, text);
    out = text;
}

template <class T, size_t N> void from(const Json &json, std::span<T, N> &out) {
    auto &all = sandbox_kept<std::vector<std::remove_const_t<T>>>();
    from(json, all);
    out = all;
}

template <class T> auto from(const Json &json, T &out) -> decltype(out.push(std::declval<typename T::value_type>()), typename T::container_type(), void()) {
    for (const Json &item : expect(json, Json::List, "a list").items) {
        typename T::value_type value{};
        from(item, value);
        out.push(std::move(value));
    }
}

// ---- the call -------------------------------------------------------------------------------------------------------

struct Job {
    std::vector<Json> arguments;
    std::string nonce, stage = "program";
};

inline Job &job() { static Job the; return the; }

template <class F, class... A> void finish(F &&function, A &...argument) {
    job().stage = "call";
    Out out = "{\"ok\": true, \"values\": [";
    if constexpr (std::is_void_v<decltype(function(argument...))>) function(argument...), to(out, nullptr);
    else {
        std::decay_t<decltype(function(argument...))> value = function(argument...);
        to(out, value);
    }
    job().nonce += out + "]}";
}

// False where the number of arguments is another: there may be default ones.
template <class R, class... P, class F> bool invoke(F &&function) {
    if (job().arguments.size() != sizeof...(P)) return false;
    std::tuple<std::decay_t<P>...> arguments{};
    Json all;
    all.kind = Json::List;
    all.items = std::move(job().arguments);
    from(all, arguments);
    auto apply = [&](auto &...argument) -> R { return function(static_cast<P &&>(argument)...); };
    std::apply([&](auto &...argument) { finish(apply, argument...); }, arguments);
    return true;
}

template <class R, class... P> bool sandbox_call(Job &, R (*function)(P...)) { return invoke<R, P...>(function); }
template <class C> C &sandbox_made() { static C object{}; return object; }
template <class R, class C, class... P> bool sandbox_call(Job &, R (C::*method)(P...)) {
    return invoke<R, P...>([&](auto &&...a) -> R { return (sandbox_made<C>().*method)(std::forward<decltype(a)>(a)...); });
}
template <class R, class C, class... P> bool sandbox_call(Job &, R (C::*method)(P...) const) {
    return invoke<R, P...>([&](auto &&...a) -> R { return (sandbox_made<C>().*method)(std::forward<decltype(a)>(a)...); });
}
template <class F, class R, class C, class... P> bool call_object(F &function, R (C::*)(P...) const) { return invoke<R, P...>(function); }
template <class F, class R, class C, class... P> bool call_object(F &function, R (C::*)(P...)) { return invoke<R, P...>(function); }
template <class F> auto sandbox_call(Job &, F function) -> decltype(&F::operator(), bool()) { return call_object(function, &F::operator()); }

// An argument that becomes whatever the parameter wants to be; without Floats, nothing with a fraction, for the C library
// has functions of that kind under many a name.
template <bool Floats> struct Any {
    const Json *json = nullptr;
    template <class T, class V = std::remove_cv_t<T>, class = std::enable_if_t<Floats || !std::is_floating_point_v<V>>,
              class = decltype(from(std::declval<const Json &>(), std::declval<V &>()))>
    operator T &() const {
        static std::deque<V> all;
        from(*json, all.emplace_back());
        return all.back();
    }
};

// Arguments of plain types, as the values of the problem's cases have: by these C++ itself chooses among overloads, and
// works out a template's.
template <class... T> struct Types {
    template <class A> static constexpr bool fits = std::is_invocable_v<A &, T &...>;
    static constexpr size_t count = sizeof...(T);
    template <class A> static bool apply(A &apply) {
        if (job().arguments.size() != count) return false;
        std::tuple<T...> arguments{};
        Json all;
        all.kind = Json::List;
        all.items = job().arguments;
        from(all, arguments);
        std::apply([&](auto &...argument) { finish(apply, argument...); }, arguments);
        return true;
    }
};

template <class L, class A> bool apply_types(A &apply) {
    if constexpr (L::template fits<A>) return L::apply(apply);
    else return false;
}

template <bool Floats, class A, size_t... I> bool apply_any(A &apply, std::index_sequence<I...>) {
    if constexpr (std::is_invocable_v<A &, decltype(Any<Floats>{job().arguments.data() + I}) &...>) {
        std::vector<Any<Floats>> all;
        for (const Json &argument : job().arguments) all.push_back({&argument});
        finish(apply, all[I]...);
        return true;
    } else return false;
}

template <size_t N, class A> bool apply_one(A &apply) {
    return apply_any<true>(apply, std::make_index_sequence<N>{}) || apply_any<false>(apply, std::make_index_sequence<N>{});
}

// For a number of arguments with types that fit nothing else is tried: it might not compile.
template <class A, class... L, size_t... N> bool apply_count(A &apply, std::index_sequence<N...>) {
    auto one = [&]<size_t M>(std::integral_constant<size_t, M>) {
        if constexpr (((L::count == M && L::template fits<A>) || ...)) return false;
        else return apply_one<M>(apply);
    };
    size_t size = job().arguments.size();
    return ((size == N && one(std::integral_constant<size_t, N>())) || ...);
}

// direct: calls the one callee that the name stands for; it cannot be invoked where there are several.
template <class... L, class D, class A> void sandbox_choose(D direct, A apply) {
    if constexpr (std::is_invocable_v<D, Job &>)
        if (direct(job())) return;
    if ((apply_types<L>(apply) || ...)) return;
    if (!apply_count<A, L...>(apply, std::make_index_sequence<12>{}))
        throw Misfit("no function of that name takes " + std::to_string(job().arguments.size()) + " arguments of these types");
}

[[noreturn]] inline void end(int code) {
    for (;;) syscall(SYS_exit_group, code);
}

inline void answer(const std::string &frame) {
    for (size_t done = 0; done < frame.size();) {
        long size = syscall(SYS_write, 4, frame.data() + done, frame.size() - done);
        if (size <= 0) end(1);
        done += size;
    }
}

[[noreturn]] inline void complain(const char *kind, const std::string &text) {
    Out out = "{\"ok\": false, \"error\": ";
    to(out, text);
    answer(job().nonce + out + ", \"stage\": \"" + job().stage + "\", \"kind\": \"" + kind + "\"}");
    end(1);
}

inline void read_job() {
    std::string bytes(std::max(0l, syscall(SYS_lseek, 3, 0l, 2)), '\0');
    if (bytes.size() < 32 || syscall(SYS_pread64, 3, &bytes[0], bytes.size(), 0l) != (long)bytes.size()) end(1);
    job().nonce = bytes.substr(bytes.size() - 32);
    bytes.resize(bytes.size() - 32);
    Json request = Reader(bytes).read();
    for (size_t i = 0; i < request.keys.size(); i++)
        if (request.keys[i] == "args") job().arguments = std::move(request.items[i].items);
}

}  // namespace sandbox_harness

extern "C" int __wrap_main(int, char **) {
    using namespace sandbox_harness;
    try {
        read_job();
        sandbox_harness_call();
    } catch (const std::bad_alloc &error) {
        complain("memory", error.what());
    } catch (const std::exception &error) {
        complain("error", error.what());
    }
    std::fflush(stdout);
    answer(job().nonce);
    end(0);
}
#endif
