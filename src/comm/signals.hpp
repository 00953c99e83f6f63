// TERM, INT, HUP, USR1 and USR2 ask for an ordered stop at the next step boundary (exit code 75).
#pragma once

namespace maestro::comm {

void catch_stop_signals();  ///< from now on these signals only set a flag
/// The signal that was received, 0 if none. Ranks may see it at different times, so they have to agree
/// (Communicator::any) before they act on it.
int stop_signal();
void clear_stop_signal();

}  // namespace maestro::comm
