//! What a sandbox stands on when it goes on with files or memory that there are already: the base image below files stays
//! what it was, and memory needs the very engine and agent as well, whatever `remuda setup` or another build of the server
//! has put into use since. Must never let anything be raised on parts that it was not made with.

use remuda_engine::Fingerprint;
use remuda_types::{Error, ErrorCode, SnapshotMode};

use crate::platform::Platform;

/// Why something can't be raised here.
pub(crate) struct Wanting {
    cause: String,
    remedy: String,
}

impl Wanting {
    /// As the error of what was to be raised.
    pub(crate) fn told(self, what: String) -> Error {
        Error::new(ErrorCode::EngineMismatch, format!("{what} was made with parts that are not here"))
            .cause(self.cause)
            .remedy(self.remedy)
    }
}

/// What goes on with memory or files of a machine with these parts: memory with all of them, files with the base image
/// that they lie on, and the agent and engine that are in use.
pub(crate) fn of_copy(platform: &Platform, mode: SnapshotMode, made_with: &Fingerprint) -> Fingerprint {
    match mode {
        SnapshotMode::Memory => made_with.clone(),
        SnapshotMode::Filesystem => {
            Fingerprint { base: made_with.base.clone(), ..platform.engine().parts().fingerprint.clone() }
        }
    }
}

/// Whether it can go on here.
pub(crate) fn check(platform: &Platform, mode: SnapshotMode, made_with: &Fingerprint) -> Result<(), Wanting> {
    let wanted = of_copy(platform, mode, made_with);
    let here = platform.engine().parts();
    if wanted.runsc != here.fingerprint.runsc {
        return Err(Wanting {
            cause: format!("its memory is of runsc {}, and {} is in use", wanted.runsc, here.fingerprint.runsc),
            remedy: "restore it where that engine is in use; files alone have no such bond: mode filesystem".into(),
        });
    }
    here.below(&wanted).map(drop).map_err(|cause| Wanting {
        cause,
        remedy: "put it back there, from a backup or from a machine that has it".into(),
    })
}
