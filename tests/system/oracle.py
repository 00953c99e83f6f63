"""A machine in a few lines of Python, to hold simulations against."""


def in_order(costs, order, lane_of, *, groups, fanout, window):
    """The makespan when every section keeps to `order`: an upstream replica forwards before it runs backwards unless its
    window is full, a language replica runs a backward right after its forward. Micro-batches of one sample."""
    lanes = {("language", r): [s for s in order if lane_of[s] == r] for r in range(groups * fanout)}
    lanes |= {("vision", g): [s for s in order if lane_of[s] // fanout == g and (s, "vision") in costs] for g in range(groups)}
    free = dict.fromkeys(lanes, 0.0)
    busy = {}                      # lane -> (end, sample, phase)
    arrived, returned = set(), {g: [] for g in range(groups)}  # encoded samples, samples whose gradient is back
    in_flight = dict.fromkeys(range(groups), 0)
    now = last = 0.0
    while True:
        for (section, replica), queue in sorted(lanes.items()):
            lane = (section, replica)
            if lane in busy:
                continue
            if section == "language":
                if queue and ((queue[0], "vision") not in costs or queue[0] in arrived):
                    sample = queue.pop(0)
                    busy[lane] = (now + sum(costs[sample, "language"]), sample, "all")
            elif queue and (window == 0 or in_flight[replica] < window):
                sample = queue.pop(0)
                in_flight[replica] += 1
                busy[lane] = (now + costs[sample, "vision"][0], sample, "forward")
            elif returned[replica]:
                sample = min(returned[replica], key=order.index)
                returned[replica].remove(sample)
                busy[lane] = (now + costs[sample, "vision"][1], sample, "backward")
        if not busy:
            return last
        now = last = min(end for end, _, _ in busy.values())
        for lane in [lane for lane, (end, _, _) in busy.items() if end <= now]:
            end, sample, phase = busy.pop(lane)
            if phase == "forward":
                arrived.add(sample)
            elif phase == "backward":
                in_flight[lane[1]] -= 1
            elif (sample, "vision") in costs and costs[sample, "vision"][1] > 0:
                returned[lane[1] // fanout].append(sample)
