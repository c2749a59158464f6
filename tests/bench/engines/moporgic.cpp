// moporgic/TDL2048: an n-tuple network with expectimax. Options: its own, such as -n 4x6patt -i FILE -e 1 -d 2p.
#define main engine_main
#include "2048.cpp"
#undef main

#include "protocol.h"

int main(int argc, const char* argv[]) {
    using namespace moporgic;
    utils::options opts = parse(argc, argv);
    utils::config_weight(opts["alpha"]);
    utils::init_cache(opts["cache"]);
    utils::load_network(opts["load"]);
    utils::make_network(opts["make"]);
    method spec;
    for (std::string recipe : opts["recipes"]) spec = method::parse(opts[recipe]);
    return serve("moporgic/TDL2048 " COMMIT, [&spec](const Exponents& exponents) {
        static const int moves[] = {0, 3, 1, 2};  // of its own up, right, down, left
        static moporgic::select best;
        best(board(first_cell_lowest(exponents)), feature::feats(), spec);
        return moves[best.opcode()];
    });
}
