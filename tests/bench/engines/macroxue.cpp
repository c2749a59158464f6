// macroxue/2048-ai: expectimax to a depth, and look-up tables of the endgame. Options: -d DEPTH.
// The tables are computed during play, and not kept: at its end it would write gigabytes.
#define main engine_main
#include "2048.cc"
#undef main

#include "protocol.h"

int main(int argc, char* argv[]) {
    for (int c; (c = getopt(argc, argv, "d:")) != -1;)
        if (c == 'd') options.max_depth = atoi(optarg);
    options.UpdateMinProbFromDepth();
    Node::BuildMoveMap();
    Node::BuildScoreMap();
    tuple10.reset(new Tuple10(options.save_threshold));
    tuple11.reset(new Tuple11(options.save_threshold));
    _exit(serve("macroxue/2048-ai " COMMIT, [](const Exponents& exponents) {
        static const int moves[] = {0, 2, 3, 1};  // of its own up, left, right, down
        int layout[4][4], move, tiles = 0;
        for (int cell = 0; cell < 16; ++cell) tiles += (layout[cell / 4][cell % 4] = exponents[cell]) > 0;
        if (tiles <= 2) Node::cache.Clear();  // as it does before a game
        Node node(layout);
        SuggestMove(node, &move);
        return move < 0 ? move : moves[move];
    }));
}
