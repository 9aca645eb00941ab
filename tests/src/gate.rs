//! A gate holds up a handler in another process, exactly as long as a test wants.

use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The test's side: it learns of each arrival at the door, and lets it pass.
#[derive(Debug)]
pub struct Gate {
    listener: UnixListener,
    folder: tempfile::TempDir,
}

/// The handler's side, to be sent along in a message.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Door(PathBuf);

/// A handler that stands at the door. Dropping it opens the door too.
#[derive(Debug)]
#[must_use = "dropping it opens the door"]
pub struct Arrival(UnixStream);

impl Gate {
    /// Makes a closed gate.
    pub fn new() -> Gate {
        let folder = tempfile::tempdir().expect("a folder for the gate");
        let listener = UnixListener::bind(folder.path().join("gate")).expect("a socket in that folder");
        Gate { listener, folder }
    }

    /// Returns a door to the gate.
    pub fn door(&self) -> Door {
        Door(self.folder.path().join("gate"))
    }

    /// Waits until a handler stands at the door.
    pub fn arrival(&self) -> Arrival {
        Arrival(self.listener.accept().expect("a handler comes to the gate").0)
    }

    /// Lets the next arrival pass at once.
    pub fn pass_one(&self) {
        self.arrival().open();
    }
}

impl Default for Gate {
    fn default() -> Self {
        Gate::new()
    }
}

impl Arrival {
    /// Lets the handler pass.
    pub fn open(mut self) {
        // The process at the door may have been killed there.
        let _ = self.0.write_all(&[1]);
    }
}

impl Door {
    /// Stands at the door until the test opens it.
    ///
    /// # Errors
    /// Fails where the gate is gone.
    pub fn pass(&self) -> io::Result<()> {
        let mut stream = UnixStream::connect(&self.0)?;
        // The end of the stream is an open door too.
        stream.read(&mut [0]).map(|_| ())
    }
}
