//! A bundle of a real run, checked as a stranger would: whole, then changed in every way that somebody might change it.

use std::fs;
use std::path::{Path, PathBuf};

use remuda_rodeo::evidence::key::Signer;
use remuda_rodeo::evidence::manifest::{FileEntry, MANIFEST, Manifest, SIGNATURE, SignatureFile};
use remuda_rodeo::evidence::verify::{Verification, verify};
use remuda_rodeo::records::Outcome;
use remuda_rodeo::verdict::Rule;
use remuda_rodeo::{Verdict, page};
use serde_json::Value;

use super::local::Behaviour;
use super::{Ran, compare};

async fn bundle(behaviour: Behaviour) -> (Ran, PathBuf) {
    let ran = compare(behaviour, |_| {}).await;
    let folder = PathBuf::from(&ran.result.as_ref().unwrap().evidence);
    (ran, folder)
}

fn checked(folder: &Path) -> Verification {
    verify(folder, &[]).unwrap().0
}

/// Does `change` to a copy of the bundle and checks that.
fn after(folder: &Path, change: impl FnOnce(&Path)) -> Verification {
    let copy = tempfile::tempdir().unwrap();
    let to = copy.path().join("bundle");
    assert!(std::process::Command::new("cp").arg("-r").arg(folder).arg(&to).status().unwrap().success());
    change(&to);
    checked(&to)
}

fn named(verification: &Verification) -> Vec<&str> {
    assert_eq!(verification.exit_code(), 1);
    verification.problems.iter().map(|problem| problem.file.as_str()).collect()
}

/// Everything that has a place in the bundle but is no folder.
fn files(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut open = vec![folder.to_owned()];
    while let Some(next) = open.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else {
                found.push(path.strip_prefix(folder).unwrap().to_str().unwrap().to_owned());
            }
        }
    }
    found.sort();
    found
}

/// What somebody would do who has the harness and a key, but not the signer's: change a record, and seal it all anew.
fn seal_anew(folder: &Path, file: &str, change: impl FnOnce(&mut Value)) {
    let mut value: Value = serde_json::from_slice(&fs::read(folder.join(file)).unwrap()).unwrap();
    change(&mut value);
    let mut bytes = serde_json::to_vec_pretty(&value).unwrap();
    bytes.push(b'\n');
    fs::write(folder.join(file), &bytes).unwrap();
    let mut manifest: Manifest = serde_json::from_slice(&fs::read(folder.join(MANIFEST)).unwrap()).unwrap();
    let entry = FileEntry { bytes: bytes.len() as u64, blake3: blake3::hash(&bytes).to_hex().to_string() };
    manifest.files.insert(file.to_owned(), entry);
    seal(folder, &manifest);
}

fn seal(folder: &Path, manifest: &Manifest) {
    let signer = Signer::generate().unwrap();
    let bytes = serde_json::to_vec_pretty(manifest).unwrap();
    fs::write(folder.join(MANIFEST), &bytes).unwrap();
    fs::write(folder.join(SIGNATURE), SignatureFile::new(signer.public(), &signer.sign(&bytes)).bytes()).unwrap();
}

/// A run starts six Node processes, so that one bundle serves everything that can be tried on it.
#[tokio::test]
async fn a_bundle_holds_until_anything_in_it_is_changed() {
    let (_ran, folder) = bundle(Behaviour::Good).await;
    a_good_bundle_says_again_what_the_run_said(&folder);
    any_changed_byte_is_found_and_its_file_named(&folder);
    whatever_is_added_taken_away_or_replaced_is_named(&folder);
    a_conclusion_that_was_changed_and_signed_anew_contradicts_the_observations(&folder);
    records_that_no_run_could_have_made_are_told(&folder);
    an_observation_that_was_changed_and_signed_anew_changes_the_verdict(&folder);
    a_signature_counts_only_if_its_key_is_trusted(&folder);
    the_report_needs_nothing_else_and_shows_what_a_guest_wrote_as_text(&folder);
}

fn a_good_bundle_says_again_what_the_run_said(folder: &Path) {
    let verification = checked(folder);
    assert_eq!(verification.problems, []);
    assert_eq!((verification.exit_code(), verification.as_known), (0, Some(true)));
    assert_eq!(verification.outcome, Some(Outcome::Finished));
    let verdicts: Vec<_> = verification.verdicts.iter().map(|one| (one.of.as_str(), one.verdict)).collect();
    let expected = [
        ("twin", Verdict::Reproduced),
        ("branch none", Verdict::Reproduced),
        ("branch correct", Verdict::Passed),
        ("branch misleading", Verdict::Failed),
        ("cold control", Verdict::ReproductionLost),
    ];
    assert_eq!(verdicts, expected);
    assert_eq!(verification.files, files(folder).len() - 2, "all but the manifest and its signature");
    assert!(fs::read_to_string(folder.join("workload/workload.toml")).unwrap().contains("[fault]"));
    // It may be read anywhere and needs nothing else.
    assert_eq!(after(folder, |_| {}).problems, []);
}

fn any_changed_byte_is_found_and_its_file_named(folder: &Path) {
    let copy = tempfile::tempdir().unwrap();
    let to = copy.path().join("bundle");
    assert!(std::process::Command::new("cp").arg("-r").arg(folder).arg(&to).status().unwrap().success());
    for file in files(folder) {
        let path = to.join(&file);
        let good = fs::read(&path).unwrap();
        // Every byte of what vouches for the rest; elsewhere a digest is over all of them alike.
        let step = if file == SIGNATURE { 1 } else { (good.len() / 12).max(1) };
        for place in (0..good.len()).step_by(step).chain([good.len() - 1]) {
            for flip in [0x01, 0x20] {
                let mut bad = good.clone();
                bad[place] ^= flip;
                fs::write(&path, &bad).unwrap();
                let verification = checked(&to);
                // Whose key it is stands in the signature; with another one it is the manifest that is not signed.
                let expected = if file == SIGNATURE { vec![SIGNATURE, MANIFEST] } else { vec![file.as_str()] };
                let named = named(&verification);
                assert!(named.iter().any(|name| expected.contains(name)), "{file} at {place}: {named:?}");
            }
        }
        for other in [&good[..good.len() - 1], &[], &[good.as_slice(), b" "].concat()] {
            fs::write(&path, other).unwrap();
            assert_eq!(checked(&to).exit_code(), 1, "{file} with {} bytes", other.len());
        }
        fs::write(&path, &good).unwrap();
    }
    assert_eq!(checked(&to).problems, []);
}

fn whatever_is_added_taken_away_or_replaced_is_named(folder: &Path) {
    for file in files(folder) {
        let gone = after(folder, |copy| fs::remove_file(copy.join(&file)).unwrap());
        assert!(named(&gone).contains(&file.as_str()), "{file}: {:?}", gone.problems);
    }
    let added = after(folder, |copy| fs::write(copy.join("branch-better.json"), "{}").unwrap());
    assert_eq!(named(&added), ["branch-better.json"]);
    let elsewhere = tempfile::tempdir().unwrap();
    let linked = after(folder, |copy| {
        let outside = elsewhere.path().join("run.json");
        fs::rename(copy.join("run.json"), &outside).unwrap();
        std::os::unix::fs::symlink(&outside, copy.join("run.json")).unwrap();
    });
    assert_eq!(named(&linked), ["run.json"], "a link is not followed");
    let empty = tempfile::tempdir().unwrap();
    let error = verify(empty.path(), &[]).map(drop).unwrap_err().to_string();
    assert!(error.contains("is no bundle"), "{error}");
    let odd = after(folder, |copy| {
        let mut manifest: Manifest = serde_json::from_slice(&fs::read(copy.join(MANIFEST)).unwrap()).unwrap();
        let entry = manifest.files.remove("run.json").unwrap();
        manifest.files.insert("../run.json".into(), entry);
        seal(copy, &manifest);
    });
    assert!(odd.problems.iter().any(|problem| problem.message.contains("no path in a bundle")), "{:?}", odd.problems);
    let unlisted = after(folder, |copy| {
        let mut manifest: Manifest = serde_json::from_slice(&fs::read(copy.join(MANIFEST)).unwrap()).unwrap();
        manifest.files.remove("branch-none.json");
        fs::remove_file(copy.join("branch-none.json")).unwrap();
        seal(copy, &manifest);
    });
    assert!(named(&unlisted).contains(&"branch-none.json"), "a finished run has all records: {:?}", unlisted.problems);
}

fn a_conclusion_that_was_changed_and_signed_anew_contradicts_the_observations(folder: &Path) {
    type Change = fn(&mut Value);
    let cases: [(&str, Change); 9] = [
        ("branch-misleading.json", |record| record["judgement"]["verdict"] = "passed".into()),
        ("branch-misleading.json", |record| record["expectation"]["processor"] = "0".into()),
        ("branch-none.json", |record| record["patch"] = "correct".into()),
        ("branch-none.json", |record| record["attempt"]["put"]["what"] = "put nothing".into()),
        ("verdicts.json", |record| record["branches"][2][1]["verdict"] = "passed".into()),
        ("report.json", |record| record["branches"][2]["verdict"] = "passed".into()),
        ("cleanup.json", |record| record["clean"] = false.into()),
        ("source.json", |record| record["state"]["unchanged"] = false.into()),
        ("run.json", |record| record["ledger"]["jobs"][0]["unitCents"] = 1.into()),
    ];
    for (file, change) in cases {
        let verification = after(folder, |copy| seal_anew(copy, file, change));
        assert!(named(&verification).contains(&file), "{file}: {:?}", verification.problems);
        assert!(verification.signer.is_some(), "the signature itself is good: {file}");
    }
    let stranger = after(folder, |copy| seal_anew(copy, "run.json", |run| run["seed_of_doubt"] = 1.into()));
    assert!(named(&stranger).contains(&"run.json"), "what nobody looks at is refused: {:?}", stranger.problems);
    let workload = after(folder, |copy| {
        let file = "workload/workload.toml";
        let text = fs::read_to_string(copy.join(file)).unwrap();
        let text = text.replace(r#"{ memory = "failed""#, r#"{ memory = "passed""#);
        fs::write(copy.join(file), &text).unwrap();
        let mut manifest: Manifest = serde_json::from_slice(&fs::read(copy.join(MANIFEST)).unwrap()).unwrap();
        let entry = FileEntry { bytes: text.len() as u64, blake3: blake3::hash(text.as_bytes()).to_hex().to_string() };
        manifest.files.insert(file.into(), entry);
        seal(copy, &manifest);
    });
    assert!(named(&workload).contains(&"workload/workload.toml"), "{:?}", workload.problems);
}

/// Observations of something else than a run observes prove nothing, whatever verdict would follow from them.
fn records_that_no_run_could_have_made_are_told(folder: &Path) {
    type Change = fn(&mut Value);
    let cases: [(&str, Change); 18] = [
        ("branch-none.json", |r| r["attempt"]["results"]["path"] = "/other".into()),
        ("branch-none.json", |r| r["attempt"]["release"]["method"] = "GET".into()),
        ("branch-none.json", |r| r["attempt"]["release"]["attempts"] = 2.into()),
        ("branch-none.json", |r| r["attempt"]["before"]["at_ms"] = 5.into()),
        ("branch-none.json", |r| {
            let after = r["attempt"]["after"]["at_ms"].as_i64().unwrap();
            r["attempt"]["before"]["at_ms"] = (after + 3_000).into();
        }),
        ("branch-none.json", |r| r["attempt"]["markers"]["put"]["what"] = "nothing".into()),
        ("branch-none.json", |r| r["attempt"]["sighting"]["files"]["folder"] = "/tmp".into()),
        ("branch-none.json", |r| r["attempt"]["machine"] = "m1".into()),
        ("branch-none.json", |r| r["attempt"]["unheard_of"] = 1.into()),
        ("source-prepared.json", |r| r["steps"] = Value::Array(Vec::new())),
        ("source-prepared.json", |r| r["steps"][0]["error"] = "it failed".into()),
        ("twin-prepared.json", |r| r["submitted"]["answer"]["response"]["status"] = 500.into()),
        ("fork.json", |r| *r = Value::String("nonsense".into())),
        ("fork.json", |r| drop(r["branches"].as_array_mut().unwrap().pop())),
        ("cold-control.json", |r| r["steps"] = Value::Array(Vec::new())),
        ("cleanup.json", |r| r["machines"] = Value::Array(Vec::new())),
        ("inventory-after.json", |r| r["added"]["machines"] = serde_json::json!(["m9"])),
        ("run.json", |r| r["error"] = "it failed".into()),
    ];
    for (index, (file, change)) in cases.into_iter().enumerate() {
        let verification = after(folder, |copy| seal_anew(copy, file, change));
        assert!(named(&verification).contains(&file), "{index} {file}: {:?}", verification.problems);
    }
    let huge = after(folder, |copy| {
        let file = fs::File::create(copy.join("hole")).unwrap();
        file.set_len(63 << 20).unwrap();
    });
    assert_eq!(named(&huge), ["hole"], "what is not listed is not read");
    let copy = tempfile::tempdir().unwrap();
    for index in 0..6 {
        fs::File::create(copy.path().join(format!("{index}"))).unwrap().set_len(63 << 20).unwrap();
    }
    let error = verify(copy.path(), &[]).map(drop).unwrap_err().to_string();
    assert!(error.contains("it is no bundle"), "{error}");
    let odd = after(folder, |copy| {
        use std::os::unix::ffi::OsStrExt as _;
        fs::write(copy.join(std::ffi::OsStr::from_bytes(b"run.json\xff")), "").unwrap();
    });
    assert_eq!(odd.problems.len(), 1, "{:?}", odd.problems);
}

/// A right observation can't be told from a forged one by its look; but it can't be forged without the verdict following.
fn an_observation_that_was_changed_and_signed_anew_changes_the_verdict(folder: &Path) {
    let verification = after(folder, |copy| {
        seal_anew(copy, "branch-correct.json", |record| {
            record["attempt"]["before"]["answer"]["response"]["body"] = "{}".into();
        });
    });
    let correct = verification.verdicts.iter().find(|one| one.of == "branch correct").unwrap();
    assert_eq!((correct.verdict, correct.rule), (Verdict::Unverified, Rule::UnreadableBefore));
    let named = named(&verification);
    for file in ["branch-correct.json", "verdicts.json", "report.json"] {
        assert!(named.contains(&file), "{file}: {named:?}");
    }
    assert_eq!(verification.as_known, Some(false));
}

fn a_signature_counts_only_if_its_key_is_trusted(folder: &Path) {
    let signer = checked(folder).signer.unwrap().parse().unwrap();
    let stranger = Signer::generate().unwrap().public();
    let (good, _) = verify(folder, &[stranger, signer]).unwrap();
    assert_eq!((good.exit_code(), good.trusted), (0, Some(true)));
    let (bad, _) = verify(folder, &[stranger]).unwrap();
    assert_eq!((bad.exit_code(), bad.trusted), (1, Some(false)));
    assert_eq!(named(&bad), [MANIFEST]);
}

fn the_report_needs_nothing_else_and_shows_what_a_guest_wrote_as_text(folder: &Path) {
    let (verification, story) = verify(folder, &[]).unwrap();
    let story = story.unwrap();
    let text = page::html(&verification, &story);
    for part in ["every control got its known verdict", "Not established", "<svg", "as known", "job-1-ebc77b5a"] {
        assert!(text.contains(part), "{part}");
    }
    assert!(!text.contains("<script") && !text.contains("src=") && !text.contains("href="), "nothing is loaded");
    let markdown = page::markdown(&verification, &story);
    assert!(markdown.contains("| branch correct | passed | as known |"), "{markdown}");

    let copy = tempfile::tempdir().unwrap();
    let to = copy.path().join("bundle");
    assert!(std::process::Command::new("cp").arg("-r").arg(folder).arg(&to).status().unwrap().success());
    let body = "<script>alert(1)</script> | [a](b)";
    seal_anew(&to, "branch-correct.json", |record| {
        record["attempt"]["results"]["answer"]["response"]["body"] = body.into();
    });
    let (verification, story) = verify(&to, &[]).unwrap();
    let story = story.unwrap();
    let text = page::html(&verification, &story);
    assert!(text.contains("&lt;script&gt;alert(1)") && !text.contains("<script"), "a guest's text is text");
    assert!(text.contains("this evidence does not hold"));
    assert!(!page::markdown(&verification, &story).contains("<script"));
}

#[tokio::test]
async fn a_run_that_shows_no_fault_and_one_that_leaves_things_behind_are_good_evidence_of_that() {
    let (_ran, folder) = bundle(Behaviour::ForbiddenPorts).await;
    let (verification, story) = verify(&folder, &[]).unwrap();
    assert_eq!((verification.problems.as_slice(), verification.as_known), ([].as_slice(), Some(false)));
    assert_eq!(verification.verdicts.len(), 1);
    assert!(page::markdown(&verification, &story.unwrap()).contains("No patch was tried"));
    let (_ran, folder) = bundle(Behaviour::NeverRemoves).await;
    let (verification, story) = verify(&folder, &[]).unwrap();
    assert_eq!((verification.problems.as_slice(), verification.as_known), ([].as_slice(), Some(false)));
    assert!(page::markdown(&verification, &story.unwrap()).contains("Whether anything was left behind"));
}
