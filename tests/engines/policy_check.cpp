// Drives examples/engines/movelist_policy.hpp for tests/play/test_readers.py and benchmarks/export.py.
//
//     policy_check choose FILE              cases on standard input, a line each:
//                                           greedy temperature top_k seed turn count ids... states... [features...]
//                                           -> index log_prob logits..., or "error: ..."
//     policy_check load FILE GAME LAYOUT    "good", or "error: ..." and exit code 3
//     policy_check fuzz FILE ROUNDS         damaged copies in memory, with and without a mended checksum
//     policy_check allocations FILE         allocations in calls after the first
//     policy_check time FILE COUNT ROUNDS   median microseconds of a call: with new ids, with known ids
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <new>
#include <random>
#include <sstream>

#include "../../examples/engines/movelist_policy.hpp"

static std::size_t allocations = 0;

// Not inlined: the compiler would see malloc meet delete and warn.
#define NOT_INLINED __attribute__((noinline))
NOT_INLINED void* operator new(std::size_t size) {
    ++allocations;
    if (void* memory = std::malloc(size ? size : 1)) return memory;
    throw std::bad_alloc();
}
NOT_INLINED void operator delete(void* memory) noexcept { std::free(memory); }
NOT_INLINED void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

static movelist::Policy load(const char* path) {
    std::string error;
    std::optional<movelist::Policy> policy = movelist::Policy::load(path, {}, &error);
    if (!policy) {
        std::cerr << error << "\n";
        std::exit(3);
    }
    return *policy;
}

static int choose(const char* path) {
    movelist::Policy policy = load(path);
    std::string line;
    while (std::getline(std::cin, line)) {
        std::istringstream words(line);
        movelist::Play play;
        std::size_t count = 0;
        std::string word;
        words >> play.greedy >> play.temperature >> play.top_k >> play.seed >> play.turn >> count;
        std::vector<std::int64_t> ids(count);
        for (std::int64_t& id : ids) words >> id;
        std::vector<float> state;
        while (words >> word) state.push_back(std::strtof(word.c_str(), nullptr));
        const std::size_t width = policy.info().state_size;
        std::vector<float> features;
        if (policy.info().feature_size && state.size() > width) {
            features.assign(state.begin() + static_cast<std::ptrdiff_t>(width), state.end());
            state.resize(width);
        }
        const movelist::Choice choice =
            features.empty() ? policy.choose(state.data(), state.size(), ids.data(), ids.size(), play)
                             : policy.choose(state.data(), state.size(), ids.data(), ids.size(), features.data(),
                                             features.size() / ids.size(), play);
        if (choice.index < 0) {
            std::printf("error: %s\n", policy.error().c_str());
            continue;
        }
        std::printf("%d %.9g", choice.index, static_cast<double>(choice.log_prob));
        for (const float logit : policy.logits()) std::printf(" %.9g", static_cast<double>(logit));
        std::printf("\n");
    }
    return 0;
}

static int load_only(const char* path, const char* game, const char* layout) {
    std::string error;
    if (movelist::Policy::load(path, {game, layout}, &error)) {
        std::printf("good\n");
        return 0;
    }
    std::printf("error: %s\n", error.c_str());
    return 3;
}

static void mend(std::vector<char>& bytes) {
    if (bytes.size() < 4) return;
    const std::uint32_t crc =
        movelist::detail::crc32(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size() - 4);
    for (int i = 0; i < 4; ++i) bytes[bytes.size() - 4 + static_cast<std::size_t>(i)] = static_cast<char>(crc >> (8 * i));
}

static int fuzz(const char* path, int rounds) {
    std::ifstream file(path, std::ios::binary);
    const std::vector<char> whole{std::istreambuf_iterator<char>(file), {}};
    std::uint64_t header = 0;
    std::memcpy(&header, whole.data(), 8);
    std::mt19937_64 random(1);
    int refused = 0, played = 0;
    for (int round = 0; round < rounds; ++round) {
        std::vector<char> bytes = whole;
        const int kind = round % 4;
        if (kind == 0) bytes.resize(random() % whole.size());                                      // cut
        if (kind == 1) bytes[random() % whole.size()] ^= static_cast<char>(1 << (random() % 8));  // flipped
        if (kind >= 2) {  // the header changed by someone who mends the checksum
            for (std::uint64_t n = 1 + random() % 4; n > 0; --n) {
                bytes[random() % (8 + header)] = static_cast<char>(kind == 2 ? random() : '0' + random() % 80);
            }
        }
        if (round % 4 >= 2 || round % 8 == 0) mend(bytes);
        std::string error;
        std::optional<movelist::Policy> policy =
            movelist::Policy::from_memory(bytes.data(), bytes.size(), {}, &error);
        if (!policy) {
            if (error.empty()) return 4;
            ++refused;
            continue;
        }
        if (kind < 2) return 5;  // a cut or a flipped bit went through
        const std::vector<float> state(policy->info().state_size, 0.5f);
        const std::int64_t ids[] = {0, 1, 2};
        const std::vector<float> features(3 * policy->info().feature_size, 0.5f);
        policy->choose(state.data(), state.size(), ids, 3, features.data(), policy->info().feature_size);
        ++played;
    }
    std::printf("refused %d played %d\n", refused, played);
    return 0;
}

static int count_allocations(const char* path) {
    movelist::Policy policy = load(path);
    std::vector<float> state(policy.info().state_size, 0.25f);
    std::vector<std::int64_t> ids(700);
    movelist::Play play;
    const std::vector<float> features(policy.info().feature_size * ids.size(), 0.5f);
    std::size_t first = 0, later = 0;
    for (int call = 0; call < 200; ++call) {
        const std::size_t count = call == 0 ? ids.size() : 1 + static_cast<std::size_t>(call * 37 % 700);
        const std::size_t rows = policy.info().num_actions ? policy.info().num_actions : 1000000;
        for (std::size_t a = 0; a < count; ++a) {
            ids[a] = static_cast<std::int64_t>((a + static_cast<std::size_t>(call)) % rows);
        }
        play.greedy = call != 0 && call % 2 == 0;
        play.top_k = 3 + call % 5;
        play.seed = static_cast<std::uint64_t>(call);
        const std::size_t before = allocations;
        const std::size_t each = policy.info().feature_size;
        if (policy.choose(state.data(), state.size(), ids.data(), count, features.data(), each, play).index < 0) return 4;
        (call == 0 ? first : later) += allocations - before;
    }
    std::printf("first %zu later %zu\n", first, later);
    return 0;
}

static int time_calls(const char* path, std::size_t count, int rounds) {
    movelist::Policy policy = load(path);
    std::mt19937_64 random(1);
    std::vector<float> state(policy.info().state_size);
    std::vector<std::int64_t> ids(count);
    std::vector<double> seconds[2];
    for (int round = 0; round < rounds; ++round) {
        for (float& value : state) value = static_cast<float>(random() % 2);
        for (std::int64_t& id : ids) {
            const std::uint64_t rows = policy.info().num_actions;
            id = static_cast<std::int64_t>(rows ? random() % rows : random());
        }
        for (std::vector<double>& calls : seconds) {  // the second time every id is known
            const auto start = std::chrono::steady_clock::now();
            if (policy.choose(state.data(), state.size(), ids.data(), count).index < 0) return 4;
            calls.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
        }
    }
    for (std::vector<double>& calls : seconds) std::sort(calls.begin(), calls.end());
    const std::size_t middle = seconds[0].size() / 2;
    std::printf("%.2f %.2f\n", seconds[0][middle] * 1e6, seconds[1][middle] * 1e6);
    return 0;
}

int main(int argc, char** argv) {
    const std::string command = argc > 2 ? argv[1] : "";
    if (command == "choose") return choose(argv[2]);
    if (command == "load" && argc == 5) return load_only(argv[2], argv[3], argv[4]);
    if (command == "fuzz" && argc == 4) return fuzz(argv[2], std::atoi(argv[3]));
    if (command == "allocations") return count_allocations(argv[2]);
    if (command == "time" && argc == 5) {
        return time_calls(argv[2], static_cast<std::size_t>(std::atoi(argv[3])), std::atoi(argv[4]));
    }
    std::cerr << "policy_check choose|load|fuzz|allocations|time FILE ...\n";
    return 2;
}
