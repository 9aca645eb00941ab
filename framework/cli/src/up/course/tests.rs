use std::os::unix::process::ExitStatusExt;

use super::*;

const WITHIN: Duration = Duration::from_secs(30);
const FOLLOW: Duration = Duration::from_secs(15);

/// A run with a clock that the test moves.
struct Run {
    course: Course,
    now: Instant,
}

impl Run {
    fn of(hosts: usize) -> Self {
        let now = Instant::now();
        let labels = (0..hosts).map(|host| format!("h{host}"));
        Run { course: Course::new(labels, WITHIN, FOLLOW, now), now }
    }

    fn running(hosts: usize) -> Self {
        let mut run = Run::of(hosts);
        for host in 0..hosts {
            run.said(host, Mark::Ready);
        }
        for host in 0..hosts {
            run.said(host, Mark::Started);
        }
        for host in 0..hosts {
            run.said(host, Mark::Joined(host as u16));
        }
        run
    }

    fn heard(&mut self, host: usize, heard: Heard) -> Vec<Act> {
        let mut acts = Vec::new();
        self.course.heard(host, heard, self.now, &mut acts);
        acts
    }

    fn said(&mut self, host: usize, mark: Mark) -> Vec<Act> {
        self.heard(host, Heard::Said(mark))
    }

    /// Ends ssh with this status, and its pipes too.
    fn exits(&mut self, host: usize, status: i32) -> Vec<Act> {
        let mut acts = self.heard(host, Heard::Exited(ExitStatus::from_raw(status << 8)));
        acts.extend(self.heard(host, Heard::Closed));
        acts.extend(self.heard(host, Heard::Closed));
        acts
    }

    fn ends(&mut self, host: usize, status: u8) -> Vec<Act> {
        self.said(host, Mark::Ended(status));
        self.exits(host, i32::from(status))
    }

    /// Moves the clock to the next due time. Returns the acts then, and how long it took.
    fn next(&mut self) -> (Duration, Vec<Act>) {
        let mut acts = Vec::new();
        let at = self.course.due(self.now, &mut acts).expect("something is due");
        assert_eq!(acts, [], "nothing is due yet");
        let after = at - self.now;
        self.now = at;
        self.course.due(at, &mut acts);
        (after, acts)
    }

    fn stop(&mut self) -> Vec<Act> {
        let mut acts = Vec::new();
        self.course.stop(self.now, &mut acts);
        acts
    }
}

fn told(acts: &[Act]) -> Vec<(usize, Word)> {
    let words = acts.iter().filter_map(|act| match act {
        Act::Tell(host, word) => Some((*host, *word)),
        Act::Note(_) => None,
    });
    words.collect()
}

fn notes(acts: &[Act]) -> String {
    let notes = acts.iter().filter_map(|act| match act {
        Act::Note(text) => Some(text.as_str()),
        Act::Tell(..) => None,
    });
    notes.collect::<Vec<_>>().join("\n")
}

#[test]
fn nothing_starts_before_all_are_ready() {
    let mut run = Run::of(3);
    assert_eq!((run.said(2, Mark::Ready), run.said(0, Mark::Ready)), (vec![], vec![]));
    // A mark that comes twice, or out of turn, does nothing.
    assert_eq!((run.said(0, Mark::Ready), run.said(0, Mark::Ended(3))), (vec![], vec![]));
    assert_eq!(told(&run.said(1, Mark::Ready)), [(0, Word::Go), (1, Word::Go), (2, Word::Go)]);
    assert_eq!((run.said(0, Mark::Started), run.said(2, Mark::Started)), (vec![], vec![]));
    assert!(notes(&run.said(1, Mark::Started)).contains("runs on h0, h1, h2"));
    for host in 0..3 {
        assert_eq!(run.course.end(), None);
        assert_eq!(run.ends(host, 0), []);
    }
    assert_eq!(run.course.end(), Some(End::Status(0)));
}

#[test]
fn a_host_that_is_not_reached_starts_nothing_and_is_named() {
    for (status, what) in
        [(255, "cannot be reached"), (120, "could not be prepared"), (0, "could not be prepared")]
    {
        let mut run = Run::of(2);
        run.said(0, Mark::Ready);
        assert_eq!(told(&run.exits(1, status)), []);
        let Some(End::NotStarted(why)) = run.course.end() else { panic!("it goes on") };
        assert!(why.starts_with("`h1` ") && why.contains(what), "{why}");
    }
    let mut run = Run::of(2);
    assert_eq!(run.next().0, SLOW);
    run.said(1, Mark::Ready);
    run.stop();
    assert_eq!(run.course.end(), Some(End::NotStarted("it was interrupted".to_owned())));
}

#[test]
fn hosts_that_take_long_are_named_once() {
    let mut run = Run::of(3);
    run.said(1, Mark::Ready);
    let (after, acts) = run.next();
    assert_eq!((after, notes(&acts).as_str()), (SLOW, "waiting for h0, h2"));
    assert_eq!(run.course.due(run.now, &mut Vec::new()), None);
}

#[test]
fn the_first_status_that_is_not_0_is_the_status() {
    let mut run = Run::running(3);
    assert_eq!(run.ends(1, 0), []);
    assert!(notes(&run.ends(2, 7)).contains("`h2` has ended with status 7"));
    run.ends(0, 9);
    assert_eq!(run.course.first_failure(), Some(("h2", 7)));
    assert_eq!(run.course.end(), Some(End::Status(7)));
}

#[test]
fn a_connection_that_ends_without_a_word_is_lost() {
    let mut run = Run::running(2);
    // The status of ssh does not count: the script reports the program's end where it still can.
    assert!(notes(&run.exits(1, 0)).contains("connection to `h1` is lost"));
    run.ends(0, 255);
    assert_eq!(run.course.first_failure(), Some(("h1", LOST)));
    assert_eq!(run.course.end(), Some(End::Status(LOST)));
}

#[test]
fn pipes_that_something_else_holds_are_not_waited_for_long() {
    let mut run = Run::running(1);
    run.said(0, Mark::Ended(0));
    run.heard(0, Heard::Closed);
    run.heard(0, Heard::Exited(ExitStatus::from_raw(0)));
    assert_eq!(run.course.end(), None);
    assert_eq!(run.next().0, LINGER);
    assert_eq!(run.course.end(), Some(End::Status(0)));
}

#[test]
fn the_head_is_asked_first_and_takes_the_others_along() {
    let mut run = Run::running(3);
    assert_eq!(told(&run.stop()), [(0, Word::Term)]);
    run.now += Duration::from_secs(5);
    run.ends(0, 0);
    run.ends(2, 0);
    // One host goes on without the head.
    let (after, acts) = run.next();
    assert_eq!((after, told(&acts)), (FOLLOW, vec![(1, Word::Term)]));
    let (after, acts) = run.next();
    assert_eq!((after, told(&acts)), (WITHIN, vec![(1, Word::Kill)]));
    let (after, acts) = run.next();
    assert!(after == KILLED && notes(&acts).contains("`h1` does not answer"), "{acts:?}");
    assert_eq!(run.course.end(), Some(End::Status(LOST)));
}

#[test]
fn a_head_that_does_not_end_is_killed() {
    let mut run = Run::running(2);
    run.stop();
    let (after, acts) = run.next();
    assert_eq!((after, told(&acts)), (WITHIN, vec![(0, Word::Kill)]));
    run.ends(0, 137);
    run.ends(1, 0);
    assert_eq!(run.course.end(), Some(End::Status(137)));
}

#[test]
fn a_second_signal_kills_and_a_third_gives_up() {
    let mut run = Run::running(2);
    run.ends(0, 0);
    assert_eq!(told(&run.stop()), [(1, Word::Term)], "the head has gone: whoever is left is asked");
    assert_eq!(told(&run.stop()), [(1, Word::Kill)]);
    assert!(notes(&run.stop()).contains("h1 given up"));
    assert_eq!(run.course.end(), Some(End::Status(LOST)));
}

#[test]
fn what_cannot_be_given_is_an_error_before_the_start_and_a_loss_after_it() {
    let mut run = Run::of(1);
    run.heard(0, Heard::Unfed("the program has gone".to_owned()));
    let why = "`h0` cannot be given what it needs: the program has gone".to_owned();
    assert_eq!(run.course.end(), Some(End::NotStarted(why)));
    let mut run = Run::running(1);
    run.heard(0, Heard::Unfed("ssh cannot be waited for".to_owned()));
    assert_eq!(run.course.end(), Some(End::Status(LOST)));
}

#[test]
fn hosts_that_join_are_named_and_those_that_take_long() {
    let mut run = Run::of(3);
    for host in 0..3 {
        // A host cannot join before its program runs.
        assert_eq!(run.said(host, Mark::Joined(7)), []);
        run.said(host, Mark::Ready);
    }
    // The program may be faster than the script.
    assert_eq!(notes(&run.said(0, Mark::Joined(0))), "`h0` is the head, and takes the others in: 1 of 3");
    (0..3).for_each(|host| drop(run.said(host, Mark::Started)));
    assert_eq!(notes(&run.said(2, Mark::Joined(1))), "`h2` has joined as host 1: 2 of 3");
    assert_eq!(run.said(2, Mark::Joined(1)), []);
    let (after, acts) = run.next();
    assert_eq!((after, told(&acts)), (SLOW, vec![]));
    assert!(notes(&acts).starts_with("h1 not joined yet: does the head's port answer there?"), "{acts:?}");
    assert_eq!(run.course.due(run.now, &mut Vec::new()), None);
    assert_eq!(notes(&run.said(1, Mark::Joined(2))), "`h1` has joined as host 2: 3 of 3");
}

#[test]
fn a_host_that_fails_before_it_has_joined_ends_all() {
    let begin = || {
        let mut run = Run::of(3);
        (0..3).for_each(|host| drop(run.said(host, Mark::Ready)));
        (0..3).for_each(|host| drop(run.said(host, Mark::Started)));
        run.said(0, Mark::Joined(0));
        run
    };
    let mut run = begin();
    assert_eq!(run.ends(2, 0), [], "it may have nothing to do with the node");
    let acts = run.ends(1, 1);
    assert_eq!(told(&acts), [(0, Word::Term)]);
    assert!(notes(&acts).contains("`h1` will not join"), "{acts:?}");
    run.ends(0, 0);
    assert_eq!(run.course.end(), Some(End::Status(1)));
    // The head fails: the others would ask for it for two minutes.
    let mut run = Run::of(3);
    (0..3).for_each(|host| drop(run.said(host, Mark::Ready)));
    assert_eq!(told(&run.ends(0, 1)), [(1, Word::Term), (2, Word::Term)]);
    // A host that had joined fails: the node has to do without it.
    let mut run = begin();
    run.said(1, Mark::Joined(1));
    assert_eq!(told(&run.ends(1, 1)), []);
    // When all are asked to end already, no host is asked again.
    let mut run = begin();
    run.stop();
    assert_eq!(told(&run.ends(1, 143)), []);
}

#[test]
fn a_status_says_which_signal_it_was() {
    assert_eq!((shown(3).as_str(), shown(139).as_str()), ("status 3", "status 139 (SIGSEGV)"));
    assert_eq!((shown(128).as_str(), shown(255).as_str()), ("status 128", "status 255"));
}

#[test]
fn of_many_hosts_some_are_named() {
    let mut run = Run::of(MAX_LISTED + 2);
    let (_, acts) = run.next();
    assert!(notes(&acts).ends_with("h15 and 2 more"), "{acts:?}");
}
