// nneonneo/2048-ai: expectimax over hand-made features, to a depth that grows with the number of tiles.
#define main engine_main
#include "2048.cpp"
#undef main

#include "protocol.h"

int main() {
    init_tables();
    return serve("nneonneo/2048-ai " COMMIT, [](const Exponents& exponents) {
        return find_best_move(first_cell_lowest(exponents));
    });
}
