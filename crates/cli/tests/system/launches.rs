//! Launch recipes: a sandbox that counts as up when its program serves, from an image or from files, and a program that is
//! started again when it ends.

use remuda_client::wire::{CreateSandbox, Execution, LaunchRecipe, Restart};
use remuda_types::{Error, ErrorCode, ExecutionState, SandboxId};

use crate::api::{Api, PATIENCE, refused, traces};
use crate::restart::Place;

/// Answers 503 until it has been asked twice, and then 204; `/end/N` makes it exit with N.
const PROGRAM: &str = r#"
import http.server, os, sys
asked = 0
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        global asked
        asked += 1
        self.send_response(503 if asked < 3 else 204)
        self.end_headers()
        if self.path.startswith("/end/"):
            os._exit(int(self.path[5:]))
    def log_message(self, *_): pass
print(os.environ["GREETING"], os.getuid(), os.getcwd(), flush=True)
http.server.ThreadingHTTPServer(("0.0.0.0", 8000), Answer).serve_forever()
"#;

fn recipe(restart: Restart) -> LaunchRecipe {
    LaunchRecipe {
        argv: ["python3", "-u", "-c", PROGRAM].map(String::from).to_vec(),
        cwd: Some("/tmp".into()),
        env: [("GREETING".to_owned(), "hello".to_owned())].into(),
        user: Some("root".into()),
        port: 8000,
        ready_path: Some("/".into()),
        ready_status: Some(204),
        restart,
        timeout_ms: Some(60_000),
    }
}

fn with(launch: LaunchRecipe) -> CreateSandbox {
    CreateSandbox { memory_mib: Some(512), launch: Some(launch), ..CreateSandbox::default() }
}

/// Asks the program, as soon as it listens.
async fn ask(api: &Api, id: &SandboxId, path: &str) {
    let asking = async {
        let get = || remuda_client::Method::GET;
        while api.client.port_request(id, 8000, get(), path, Default::default(), "").await.is_err() {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, asking).await.expect("it does not listen");
}

/// Waits for an execution that none of those is.
async fn another(api: &Api, id: &SandboxId, known: &[Execution]) -> Execution {
    let waiting = async {
        loop {
            let all = api.client.executions(id).await.unwrap();
            let new =
                all.into_iter().find(|e| e.state == ExecutionState::Running && known.iter().all(|k| k.id != e.id));
            if let Some(new) = new {
                return new;
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, waiting).await.expect("it is not started again")
}

#[tokio::test]
async fn a_sandbox_from_the_image_comes_up_serving_and_again_after_a_stop() {
    let api = Api::shared();
    let made = api.create_with(&with(recipe(Restart::Never))).await;
    let ran = api.client.executions(&made.id).await.unwrap();
    assert_eq!((ran.len(), ran[0].state), (1, ExecutionState::Running));
    let page = api.client.output(&made.id, &ran[0].id, &Default::default()).await.unwrap();
    assert_eq!(page.records[0].text, "hello 0 /tmp\n", "environment, user and directory are the recipe's");
    // It served when the call returned: the first two answers were not the ones that it waits for.
    let get = remuda_client::Method::GET;
    let answer = api.client.port_request(&made.id, 8000, get, "/", Default::default(), "").await.unwrap();
    assert_eq!(answer.status().as_u16(), 204);
    api.client.stop(&made.id).await.unwrap();
    let next = api.client.start(&made.id, &Default::default()).await.unwrap();
    assert_eq!(api.client.executions(&next.id).await.unwrap().len(), 1, "the recipe is kept with it");
    api.remove(&next.id).await;
    // By the command line, and one whose end is its end.
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), r#"{"argv": ["python3", "-m", "http.server", "8001"], "port": 8001}"#).unwrap();
    let id = api.server.run(&["create", "--memory", "512", "--launch", file.path().to_str().unwrap()]).line();
    assert!(api.server.run(&["ps", &id]).line().contains("http.server"));
    api.remove(&id.parse().unwrap()).await;
}

#[tokio::test]
async fn a_launch_from_the_image_that_fails_tells_why_and_leaves_nothing() {
    let api = Api::own();
    let failing = LaunchRecipe {
        argv: ["sh", "-c", "echo starting; echo broken >&2; exit 3"].map(String::from).to_vec(),
        port: 80,
        ..LaunchRecipe::default()
    };
    let told = |error: Error, code: i32| {
        assert_eq!(error.details["exit_code"], code, "{error:?}");
        assert_eq!(error.details["output"], "starting\nbroken\n", "{error:?}");
    };
    told(refused(api.client.create_sandbox(&with(failing.clone())).await, ErrorCode::LaunchFailed), 3);
    // One that answers, and never as it should.
    let wrong = LaunchRecipe { ready_status: Some(418), timeout_ms: Some(3_000), ..recipe(Restart::Always) };
    let error = refused(api.client.create_sandbox(&with(wrong)).await, ErrorCode::LaunchFailed);
    assert!(error.cause.as_ref().unwrap().contains("/ answered 204"), "{error:?}");
    for nonsense in [
        LaunchRecipe { ready_status: Some(99), ..recipe(Restart::Never) },
        LaunchRecipe { ready_path: None, ..recipe(Restart::Never) },
        LaunchRecipe { port: 0, ..recipe(Restart::Never) },
    ] {
        refused(api.client.create_sandbox(&with(nonsense)).await, ErrorCode::InvalidRequest);
    }
    let all = remuda_client::SandboxFilter { include_ended: true, ..Default::default() };
    let ended = api.client.list_sandboxes(&all).await.unwrap();
    assert_eq!(ended.len(), 2);
    for sandbox in ended {
        assert_eq!(sandbox.state, remuda_types::SandboxState::Failed);
        assert_eq!(traces(sandbox.uid.as_str()), Vec::<String>::new());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_is_started_again_as_its_recipe_says_and_not_when_it_is_cancelled() {
    let place = Place::new();
    let api = place.start();
    let failing = api.create_with(&with(recipe(Restart::OnFailure))).await.id;
    let always = api.create_with(&with(recipe(Restart::Always))).await.id;
    let mut known = api.client.executions(&failing).await.unwrap();
    ask(&api, &failing, "/end/3").await;
    known.push(another(&api, &failing, &known).await);
    assert_eq!(known[0].command, known[1].command);
    // A server that takes it over sees to it as well.
    let api = place.restart(api);
    ask(&api, &failing, "/end/4").await;
    known.push(another(&api, &failing, &known).await);
    let code = |all: &[Execution], n: usize| all.iter().find(|e| e.id == known[n].id).and_then(|e| e.exit_code);
    let now = api.client.executions(&failing).await.unwrap();
    assert_eq!((code(&now, 0), code(&now, 1)), (Some(3), Some(4)));

    // An end without a failure is the end, unless it is always started again.
    let mut of_always = api.client.executions(&always).await.unwrap();
    ask(&api, &failing, "/end/0").await;
    ask(&api, &always, "/end/0").await;
    of_always.push(another(&api, &always, &of_always).await);
    assert_eq!(api.ended(&failing, &known[2].id).await.exit_code, Some(0));
    // Who cancels it wants it to end.
    api.client.cancel(&always, &of_always[1].id).await.unwrap();
    // Twice the wait before a start: what was to come has come.
    tokio::time::sleep(std::time::Duration::from_millis(2_500)).await;
    for (id, expected) in [(&failing, 3), (&always, 2)] {
        let all = api.client.executions(id).await.unwrap();
        assert_eq!(all.len(), expected, "{all:?}");
        assert!(all.iter().all(|e| e.state.is_final()), "{all:?}");
        api.remove(id).await;
    }
}
