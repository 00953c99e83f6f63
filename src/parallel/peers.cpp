#include "parallel/peers.hpp"

#include "base/check.hpp"

namespace maestro::parallel {

collective::ProcessGroup& Peers::group(Sharing sharing) const {
    MAESTRO_CHECK(sharing != Sharing::none, "nobody shares it");
    return sharing == Sharing::tensor ? *tensor : *keys;
}

Peers no_peers() {
    return {.degrees = {},
            .kind = ContextKind::ring,
            .tensor = collective::make_meta_group(0, 1),
            .context = collective::make_meta_group(0, 1),
            .keys = collective::make_meta_group(0, 1)};
}

Peers make_peers(const comm::Communicator& lane, backend::Backend& backend, Degrees degrees, ContextKind kind,
                 int kv_heads, const std::string& name) {
    MAESTRO_CHECK(lane.size() == degrees.ranks(), "{} ranks for cp {} and tp {}", lane.size(), degrees.cp,
                  degrees.tp);
    const int cp = lane.rank() / degrees.tp, tp = lane.rank() % degrees.tp;
    const auto among = [&](int colour, const char* which) {
        return collective::make_process_group(lane.split(colour, lane.rank(), name + ", " + which), backend);
    };
    return {.degrees = degrees,
            .kind = kind,
            .tensor = among(cp, "tp ranks"),
            .context = among(tp, "cp ranks"),
            .keys = among(lane.rank() / key_holders(kv_heads, degrees.tp), "ranks that share key heads")};
}

Peers make_paper_peers(int rank, Degrees degrees, ContextKind kind, int kv_heads, PaperLink tensor,
                       PaperLink context) {
    const int holders = key_holders(kv_heads, degrees.tp);
    return {.degrees = degrees,
            .kind = kind,
            .tensor = collective::make_meta_group(rank % degrees.tp, degrees.tp, tensor.latency_s,
                                                  tensor.bandwidth),
            .context = collective::make_meta_group(rank / degrees.tp, degrees.cp, context.latency_s,
                                                   context.bandwidth),
            .keys = collective::make_meta_group(rank % holders, holders, tensor.latency_s, tensor.bandwidth)};
}

}  // namespace maestro::parallel
