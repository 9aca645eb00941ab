//! Bounds how far a sender is ahead of its receivers. No I/O.

use std::collections::VecDeque;

/// The items that were sent and not answered.
#[derive(Debug, Default)]
pub(super) struct Window {
    /// The unanswered items and bytes.
    pub(super) items: u32,
    pub(super) bytes: u64,
    /// The ends that were sent and not answered. They take no room: a receiver that has an end may finish
    /// only when others have got more items.
    pub(super) ends: u32,
    /// The oldest number that is not answered.
    oldest: u64,
    /// For each number from the oldest on: whether it is answered.
    answered: VecDeque<bool>,
}

impl Window {
    /// Whether one more item with so many bytes may go. One item alone always may, however large it is.
    pub(super) fn has_room(
        &self,
        bytes: u64,
        items: Option<u32>,
        max_bytes: Option<u64>,
        ahead: Option<u32>,
    ) -> bool {
        self.items == 0
            || (items.is_none_or(|items| self.items < items)
                && max_bytes.is_none_or(|max| self.bytes + bytes <= max)
                && ahead.is_none_or(|ahead| self.answered.len() < ahead as usize))
    }

    /// Returns the next number. If none `waits` for it, it need not be settled.
    pub(super) fn number(&mut self, waits: bool) -> u64 {
        let number = self.oldest + self.answered.len() as u64;
        if waits {
            self.answered.push_back(false);
        } else {
            self.oldest += 1;
        }
        number
    }

    pub(super) fn sent(&mut self, bytes: u64) {
        self.items += 1;
        self.bytes += bytes;
    }

    pub(super) fn answered(&mut self, bytes: u64) {
        self.items = self.items.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    /// Returns the number of items and ends that are not answered.
    pub(super) fn unanswered(&self) -> u32 {
        self.items + self.ends
    }

    /// Settles a number, so that senders may go further ahead.
    pub(super) fn settle(&mut self, number: u64) {
        let index = number.checked_sub(self.oldest);
        if let Some(answered) = index.and_then(|index| self.answered.get_mut(index as usize)) {
            *answered = true;
        }
        while self.answered.front() == Some(&true) {
            self.answered.pop_front();
            self.oldest += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_gets_further_ahead_of_the_oldest_than_the_window() {
        let mut window = Window::default();
        let send = |window: &mut Window| {
            let number = window.has_room(0, None, None, Some(3)).then(|| window.number(true));
            if number.is_some() {
                window.sent(0);
            }
            number
        };
        assert_eq!([(); 4].map(|()| send(&mut window)), [Some(0), Some(1), Some(2), None]);
        for number in [1, 2] {
            window.answered(0);
            window.settle(number);
        }
        assert_eq!(send(&mut window), None, "0 is the oldest still");
        window.answered(0);
        window.settle(0);
        assert_eq!([(); 4].map(|()| send(&mut window)), [Some(3), Some(4), Some(5), None]);
    }

    #[test]
    fn a_number_for_which_none_waits_takes_no_room() {
        let mut window = Window::default();
        assert_eq!([(); 4].map(|()| window.number(false)), [0, 1, 2, 3]);
        window.settle(1);
        window.sent(0);
        assert!(window.has_room(0, None, None, Some(1)) && window.answered.is_empty());
    }

    #[test]
    fn bytes_are_bounded_and_one_alone_always_goes() {
        let mut window = Window::default();
        assert!(window.has_room(1000, None, Some(100), None));
        window.sent(1000);
        assert!(!window.has_room(0, None, Some(100), None));
        window.answered(1000);
        window.sent(60);
        assert!(window.has_room(40, None, Some(100), None));
        assert!(!window.has_room(41, None, Some(100), None));
        assert!(!window.has_room(0, Some(1), None, None));
    }

    #[test]
    fn an_end_takes_no_room() {
        let mut window = Window::default();
        window.sent(0);
        window.ends += 2;
        assert!(window.has_room(0, Some(2), None, None));
        window.answered(0);
        assert_eq!((window.items, window.unanswered()), (0, 2));
    }
}
