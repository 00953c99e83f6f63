// TERM, INT, HUP, USR1 and USR2 ask for an ordered stop at the next step border (exit code 75).
#pragma once

namespace maestro::comm {

void catch_stop_signals();  ///< from now on these signals only set a flag
/// The signal that came, 0 if none. Ranks may see it at different times: agree (Communicator::any) before
/// acting.
int stop_signal();
void clear_stop_signal();

}  // namespace maestro::comm
