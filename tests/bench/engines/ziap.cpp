// ziap/2048-tdl: an n-tuple network with expectimax. Options: FILE of weights, DEPTH of the search.
#include "agent.h"
#include "protocol.h"

int main(int argc, char* argv[]) {
    if (argc != 3) return 2;
    STRUCTURE::load(argv[1]);
    search<STRUCTURE> model(std::atoi(argv[2]));
    return serve("ziap/2048-tdl " COMMIT, [&model](const Exponents& exponents) {
        static const int moves[] = {0, 3, 1, 2};  // of its own up, right, down, left
        return moves[model.suggest_dir(first_cell_highest(exponents))];
    });
}
