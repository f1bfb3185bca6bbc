// A whole engine in one page: a toy game that plays with the newest policy that movelist published, records what it
// plays, and shows how strong the policy has become. close_the_circle.py runs it together with the training:
//
//     g++ -std=c++17 -O3 toy_engine.cpp -o toy_engine
//     ./toy_engine RECORDINGS POLICIES UPDATES GAMES
//
// The game: 12 stones, take 1 to 3, who takes the last one wins. Until there is a first policy, moves are drawn evenly.
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <optional>
#include <random>
#include <sstream>
#include <thread>

#include "movelist_policy.hpp"
#include "movelist_writer.hpp"

namespace {

constexpr int kStones = 12, kMatchGames = 1000;
const movelist::Expected kExpected{"twelve_stones", "float32[13]"};

std::vector<float> state_of(int stones) {
    std::vector<float> state(kStones + 1, 0.0f);
    state[static_cast<std::size_t>(stones)] = 1.0f;
    return state;
}

std::vector<std::int64_t> actions_of(int stones) {
    std::vector<std::int64_t> ids;
    for (int take = 1; take <= 3 && take <= stones; ++take) ids.push_back(std::int64_t{1} << take);  // a bit each
    return ids;
}

// latest.json: {"policy_version": 12, "weights": "policy-12.safetensors"}.
struct Latest {
    std::int64_t version = -1;
    std::string weights;
};

std::optional<Latest> read_latest(const std::filesystem::path& folder) {
    std::ifstream file(folder / "latest.json", std::ios::binary);
    std::ostringstream text;
    text << file.rdbuf();
    const std::string content = text.str();
    const auto after = [&content](const char* key) {
        const std::size_t place = content.find(key);
        return place == std::string::npos ? std::string() : content.substr(content.find(':', place) + 1);
    };
    const std::string version = after("\"policy_version\""), weights = after("\"weights\"");
    const std::size_t begin = weights.find('"'), end = weights.find('"', begin + 1);
    if (version.empty() || begin == std::string::npos || end == std::string::npos) return std::nullopt;
    return Latest{std::atoll(version.c_str()), weights.substr(begin + 1, end - begin - 1)};
}

class Engine {
public:
    Engine(std::filesystem::path recordings, std::filesystem::path policies)
        : recordings_(std::move(recordings)), policies_(std::move(policies)) {}

    std::int64_t version() const { return version_; }

    // Takes the newest policy, if there is one that is not known yet.
    bool take_newest() {
        const std::optional<Latest> latest = read_latest(policies_);
        if (!latest || latest->version == version_) return false;
        std::string error;
        std::optional<movelist::Policy> policy = movelist::Policy::load(policies_ / latest->weights, kExpected, &error);
        if (!policy) {  // deleted in the meantime: there is a newer one
            std::cerr << error << std::endl;
            return false;
        }
        policy_ = std::move(policy);
        version_ = latest->version;
        return true;
    }

    // Plays games against itself and records them in a file of their own.
    void record(int num_games) {
        std::filesystem::create_directories(recordings_);
        movelist::Writer writer(recordings_ / ("games-" + std::to_string(num_files_++) + ".jsonl"), kExpected.game,
                                {kStones + 1});
        for (int game = 0; game < num_games; ++game) {
            const movelist::Player player = policy_ ? movelist::Player{"policy", version_} : movelist::Player{"policy"};
            writer.begin({player, player});
            int stones = kStones, mover = game % 2;
            while (stones > 0) {
                const std::vector<std::int64_t> ids = actions_of(stones);
                const movelist::Choice choice = choose(stones, ids, false);
                const std::vector<std::uint64_t> actions(ids.begin(), ids.end());
                writer.step(mover, state_of(stones), actions, choice.index, 0.0, choice.log_prob);
                stones -= choice.index + 1;
                mover = 1 - mover;
            }
            writer.end(mover == 1 ? std::vector<double>{1.0, -1.0} : std::vector<double>{-1.0, 1.0});
        }
    }

    // The share of games that the policy wins against random moves; both begin equally often.
    double win_rate() {
        int wins = 0;
        for (int game = 0; game < kMatchGames; ++game) {
            int stones = kStones, mover = game % 2;
            while (stones > 0) {
                const std::vector<std::int64_t> ids = actions_of(stones);
                const int index = mover == 0 ? choose(stones, ids, true).index : static_cast<int>(random_() % ids.size());
                stones -= index + 1;
                mover = 1 - mover;
            }
            wins += mover == 1;  // the one who is not to move took the last stone
        }
        return static_cast<double>(wins) / kMatchGames;
    }

private:
    movelist::Choice choose(int stones, const std::vector<std::int64_t>& ids, bool greedy) {
        if (!policy_) {
            const int index = static_cast<int>(random_() % ids.size());
            return {index, -std::log(static_cast<float>(ids.size()))};
        }
        movelist::Play play;
        play.greedy = greedy;
        play.seed = random_();
        const std::vector<float> state = state_of(stones);
        const movelist::Choice choice = policy_->choose(state.data(), state.size(), ids.data(), ids.size(), play);
        if (choice.index < 0) {
            std::cerr << policy_->error() << std::endl;
            std::exit(1);
        }
        return choice;
    }

    std::filesystem::path recordings_, policies_;
    std::optional<movelist::Policy> policy_;
    std::int64_t version_ = -1;
    int num_files_ = 0;
    std::mt19937_64 random_{7};
};

}  // namespace

int main(int argc, char** argv) {
    if (argc != 5) {
        std::cerr << "toy_engine RECORDINGS POLICIES UPDATES GAMES\n";
        return 2;
    }
    Engine engine(argv[1], argv[2]);
    const int num_updates = std::atoi(argv[3]), num_games = std::atoi(argv[4]);
    std::cout << "without a policy: wins " << engine.win_rate() << " against random moves" << std::endl;
    engine.record(num_games);  // the training learns from these what a state looks like
    while (engine.version() < num_updates) {
        // One update for each lot of games: wait for the policy that it makes.
        while (!engine.take_newest()) std::this_thread::sleep_for(std::chrono::milliseconds(20));
        std::cout << "policy " << engine.version() << ": wins " << engine.win_rate() << " against random moves" << std::endl;
        engine.record(num_games);
    }
}
