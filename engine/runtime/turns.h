#pragma once

#include <initializer_list>
#include <list>

namespace folio {

class Generation;

// Clients take turns (max-min fairness over places): how many requests somebody sends makes others
// wait no longer than for the places that are theirs.

// Orders what waits: the fewer requests of its client are admitted or wait before it, the earlier a
// request comes; of equals the one that came first. One that names no client is a client's of its
// own. Allocates nothing.
void TakeTurns(std::initializer_list<const std::list<Generation*>*> admitted,
               std::list<Generation*>* waiting);

// Which one of those that run gives its place to a request whose client has none: the latest of the
// client that has most. Null: nobody has two.
Generation* WhoGivesWay(const Generation& request, const std::list<Generation*>& running);

}  // namespace folio
