//! The transport's part of the survey that a console shows. See [`survey`](crate::observe::survey).

use super::Transport;
use crate::observe::survey::{LinkReport, Survey};

impl Transport {
    /// Reports the memory and the links of the process. Waits for no sender (CON-1).
    pub(crate) fn survey(&self) -> Survey {
        let links = self.links.all();
        let link = |link: &std::sync::Arc<super::Link>| {
            let (sent, replies) = link.sent_now().unzip();
            LinkReport {
                peer: link.peer,
                open: link.is_open() && !link.is_broken(),
                sent,
                replies_waiting: replies,
                lent: (link.granted() + link.forwarded()) as u64,
                granted: link.granted() as u64,
            }
        };
        Survey {
            pools: self.memory.pools().iter().map(|pool| pool.report()).collect(),
            links: links.iter().map(link).collect(),
        }
    }
}
