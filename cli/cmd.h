/* cli/cmd.h - the commands. Each reads c->opts, whose first positional is its own name and whose
 * number of positionals has been checked, and returns an exit code (cli/say.h). */
#ifndef CLI_CMD_H
#define CLI_CMD_H

#include "cli/say.h"

int cmd_chat(struct cli *c);
int cmd_config(struct cli *c);
int cmd_run(struct cli *c);
int cmd_eval(struct cli *c);
int cmd_tokenize(struct cli *c);
int cmd_detokenize(struct cli *c);
int cmd_place(struct cli *c);
int cmd_plan(struct cli *c);
int cmd_doctor(struct cli *c);
int cmd_image(struct cli *c);
int cmd_info(struct cli *c);
int cmd_verify(struct cli *c);
int cmd_convert(struct cli *c);
int cmd_serve(struct cli *c);
int cmd_synth(struct cli *c);
int cmd_version(struct cli *c);

/* `waste serve ARGUMENTS`: becomes the server, or says why it cannot and returns an exit code. */
int serve_exec(struct cli *c, int argc, char **argv);

#endif
