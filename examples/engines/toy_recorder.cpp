// Records random games of a toy: 12 stones, take 1 to 3, who takes the last one wins 1 point.
//     g++ -std=c++17 -O2 toy_recorder.cpp -o toy_recorder && ./toy_recorder games.jsonl 100
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <random>

#include "movelist_writer.hpp"

int main(int argc, char** argv) {
    const char* path = argc > 1 ? argv[1] : "games.jsonl";
    const int num_games = argc > 2 ? std::atoi(argv[2]) : 100;
    std::mt19937 random(7);
    movelist::Writer writer(path, "twelve_stones", {13});
    for (int game = 0; game < num_games; ++game) {
        writer.begin({{"policy", 3}, {"human"}});
        int stones = 12, player = 0;
        while (stones > 0) {
            std::vector<float> state(13, 0.0f);
            state[static_cast<std::size_t>(stones)] = 0.1f;  // no finite binary fraction: it has to come back the same
            std::vector<std::uint64_t> actions;
            for (int take = 1; take <= 3 && take <= stones; ++take)
                actions.push_back((std::uint64_t{1} << 63) + static_cast<std::uint64_t>(take));
            const int chosen = static_cast<int>(random() % actions.size());
            writer.step(player, state, actions, chosen, 0.0, -std::log(static_cast<double>(actions.size())));
            stones -= chosen + 1;
            player = 1 - player;
        }
        const double first = player == 1 ? 1.0 : -1.0;  // the one who is not to move took the last stone
        writer.end({first, -first});
    }
    std::cout << "wrote " << num_games << " games to " << path << "\n";
}
