// The values and moves of moporgic/TDL2048 for boards on standard input (u64, its own order), for
// tests/bench/tdl2048.py. Options as of moporgic.cpp.
#define main engine_main
#include "2048.cpp"
#undef main

int main(int argc, const char* argv[]) {
    using namespace moporgic;
    utils::options opts = parse(argc, argv);
    utils::config_weight(opts["alpha"]);
    utils::load_network(opts["load"]);
    utils::make_network(opts["make"]);
    method spec = method::parse(opts[opts["recipes"].front()]);
    list<utils::stage> stages = utils::stage::parse(opts["stage"]);
    struct {
        float value, moves[4];
        int best, shifted;
    } out;
    for (uint64_t raw; fread(&raw, sizeof raw, 1, stdin) == 1; fwrite(&out, sizeof out, 1, stdout)) {
        board b(raw), halved(raw);
        auto stage_of = [&stages](const board& b) {
            size_t stage = 0;
            while (stage + 2 < stages.size() && b.scale() >= stages[stage + 1]) stage += 1;
            return stages[stage];
        };
        out.value = method::estimator(spec)(b, stage_of(b));
        moporgic::select best;
        halved.shift80(1);
        best(halved, stage_of(halved), spec);
        out.shifted = best ? best.opcode() : -1;
        best(b, stage_of(b), spec);
        out.best = best ? best.opcode() : -1;
        for (int move = 0; move < 4; move++) out.moves[move] = best.move[move].esti;
    }
    return 0;
}
